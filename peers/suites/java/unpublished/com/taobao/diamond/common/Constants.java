package com.taobao.diamond.common;

/** In place of Diamond's, which is not published. */
public final class Constants {
    public static final String DEFAULT_GROUP = "DEFAULT_GROUP";

    private Constants() {
    }
}
