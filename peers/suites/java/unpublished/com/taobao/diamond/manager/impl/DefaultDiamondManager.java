package com.taobao.diamond.manager.impl;

import com.taobao.diamond.manager.DiamondManager;
import com.taobao.diamond.manager.ManagerListener;
import java.util.List;
import java.util.Properties;

/** In place of Diamond's, which is not published; it has no settings, and clients with ZooKeeper's address need none. */
public final class DefaultDiamondManager implements DiamondManager {
    public DefaultDiamondManager(String group, String dataId, ManagerListener listener) {
    }

    @Override
    public Properties getAvailablePropertiesConfigureInfomation(long timeout) {
        return null;
    }

    @Override
    public void addListeners(List<ManagerListener> listeners) {
    }

    @Override
    public void close() {
    }
}
