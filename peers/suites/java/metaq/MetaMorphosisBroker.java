package com.taobao.metamorphosis.server.assembly;

import com.taobao.metamorphosis.server.BrokerZooKeeper;
import com.taobao.metamorphosis.server.utils.MetaConfig;
import suites.OurMetaqBroker;

/** Takes the place of the original's class of this name: the broker that it starts is this project's. */
public class MetaMorphosisBroker {
    private final MetaConfig config;
    private final BrokerZooKeeper zooKeeper;
    private final OurMetaqBroker broker;

    public MetaMorphosisBroker(MetaConfig config) {
        this.config = config;
        this.zooKeeper = new BrokerZooKeeper(config);
        this.broker = new OurMetaqBroker(config, null);
    }

    public MetaConfig getMetaConfig() {
        return config;
    }

    /** The original's, which only connects: this project's broker registers itself. */
    public BrokerZooKeeper getBrokerZooKeeper() {
        return zooKeeper;
    }

    public void start() {
        broker.start();
    }

    public void stop() {
        broker.stop();
        zooKeeper.close(false);
    }
}
