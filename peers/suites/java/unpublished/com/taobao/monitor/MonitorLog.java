package com.taobao.monitor;

/** In place of the one that is not published; it keeps no statistics. */
public final class MonitorLog {
    private MonitorLog() {
    }

    public static void addStat(String first, String second, String third, long value, long count) {
    }

    public static void addStatValue2(String first, String second, String third, long value) {
    }
}
