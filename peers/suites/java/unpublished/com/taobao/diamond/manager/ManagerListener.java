package com.taobao.diamond.manager;

import java.util.concurrent.Executor;

/** In place of Diamond's, which is not published. */
public interface ManagerListener {
    Executor getExecutor();

    void receiveConfigInfo(String configInfo);
}
