package com.taobao.metamorphosis.gregor.slave;

import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;

/**
 * Takes the place of the original's class of this name, which cannot be made since Java 9: it sets a core size above
 * the maximum. One thread keeps the order of everything.
 */
public class OrderedThreadPoolExecutor extends ThreadPoolExecutor {
    public OrderedThreadPoolExecutor(int core, int most, long keepAlive, TimeUnit unit, ThreadFactory threads) {
        super(1, 1, keepAlive, unit, new LinkedBlockingQueue<>(), threads);
    }
}
