package com.taobao.metamorphosis;

import com.taobao.metamorphosis.server.assembly.MetaMorphosisBroker;
import com.taobao.metamorphosis.server.utils.MetaConfig;
import java.io.File;
import java.nio.file.Files;
import java.util.Arrays;
import java.util.Map;
import java.util.Properties;
import suites.OurMetaqBroker;

/**
 * Takes the place of the original's class of this name: a broker with its role in a pair, of this project where the
 * system property {@code suites.ours} is "all" or names its configuration file, else the original. There is no dashboard.
 */
public class EnhancedBroker {
    private final MetaMorphosisBroker broker;
    private final BrokerPlugins plugins;
    private final OurMetaqBroker ours;

    public EnhancedBroker(MetaConfig config, Map<String, Properties> roles) throws Exception {
        String name = new File(config.getConfigFilePath()).getName().replace(".ini", "");
        if (Arrays.asList(name, "all").contains(System.getProperty("suites.ours"))) {
            ours = new OurMetaqBroker(config, roles);
            plugins = null;
            broker = new MetaMorphosisBroker(elsewhere(config));
        } else {
            ours = null;
            broker = new MetaMorphosisBroker(config);
            plugins = new BrokerPlugins(roles, broker);
            plugins.init(broker, null);
        }
    }

    /** Never started if the broker is this project's; tests reach ZooKeeper through it. */
    public MetaMorphosisBroker getBroker() {
        return broker;
    }

    public void start() {
        if (ours != null) {
            ours.start();
        } else {
            broker.start();
            plugins.start();
        }
    }

    public void stop() {
        if (ours != null) {
            ours.stop();
            broker.getBrokerZooKeeper().close(false);
        } else {
            plugins.stop();
            broker.stop();
        }
    }

    private static MetaConfig elsewhere(MetaConfig config) throws Exception {
        MetaConfig same = new MetaConfig();
        same.loadFromFile(config.getConfigFilePath());
        String folder = Files.createTempDirectory(
                new File(System.getProperty("suites.folder")).toPath(), "unused-").toString();
        same.setDataPath(folder);
        same.setDataLogPath(folder);
        same.getTopicConfigMap().values().forEach(topic -> topic.setDataPath(folder));
        return same;
    }
}
