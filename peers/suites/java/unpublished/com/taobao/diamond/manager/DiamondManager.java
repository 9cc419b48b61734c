package com.taobao.diamond.manager;

import java.util.List;
import java.util.Properties;

/** In place of Diamond's, which is not published. */
public interface DiamondManager {
    Properties getAvailablePropertiesConfigureInfomation(long timeout);

    void addListeners(List<ManagerListener> listeners);

    void close();
}
