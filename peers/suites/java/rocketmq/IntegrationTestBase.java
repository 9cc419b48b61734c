package org.apache.rocketmq.test.base;

import io.netty.handler.ssl.util.SelfSignedCertificate;
import java.io.File;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.security.cert.CertificateException;
import java.util.Arrays;
import java.util.UUID;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.test.util.MQAdmin;
import org.junit.Assert;
import suites.OurBroker;

/**
 * Takes the place of the original's class of this name: name server and brokers are processes of this project. The
 * controllers that are returned are never started; tests ask them for addresses and names. As those of the original,
 * the servers have a certificate of their own, and take clients with and without TLS.
 */
public class IntegrationTestBase {
    private static final AtomicInteger PORT = new AtomicInteger(40000);
    private static final AtomicInteger NUMBER = new AtomicInteger();
    private static final int TOPIC_DEADLINE_MS = 30_000;
    private static final SelfSignedCertificate CERTIFICATE = certificate();

    public static int nextPort() {
        return PORT.addAndGet(10);
    }

    public static String createBaseDir() {
        return System.getProperty("suites.folder") + File.separator + UUID.randomUUID();
    }

    public static NamesrvController createAndStartNamesrv() {
        NettyServerConfig netty = new NettyServerConfig();
        netty.setListenPort(nextPort());
        String folder = createBaseDir();
        String file = written(folder, "namesrv.properties", "listenPort=" + netty.getListenPort(),
                "bindAddress=127.0.0.1", "kvConfigPath=" + folder + "/kvConfig.json",
                "tls.server.certPath=" + CERTIFICATE.certificate(),
                "tls.server.keyPath=" + CERTIFICATE.privateKey());
        new OurBroker("metaq_broker.rocketmq.nameserver", "start", "-c", file).start();
        return new NamesrvController(new NamesrvConfig(), netty);
    }

    public static BrokerController createAndStartBroker(String nsAddr) {
        BrokerConfig config = new BrokerConfig();
        config.setBrokerName("TestBrokerName_" + NUMBER.getAndIncrement());
        config.setBrokerIP1("127.0.0.1");
        config.setNamesrvAddr(nsAddr);
        return createAndStartBroker(new MessageStoreConfig(), config);
    }

    public static BrokerController createAndStartBroker(MessageStoreConfig store, BrokerConfig config) {
        NettyServerConfig netty = new NettyServerConfig();
        netty.setListenPort(nextPort());
        String folder = createBaseDir();
        String file = written(folder, "server.ini", "[system]", "brokerId=" + NUMBER.get(), "numPartitions=1",
                "serverPort=0", "dataPath=" + folder + "/data", "unflushThreshold=0", "unflushInterval=1000",
                "maxSegmentSize=104857600", "maxTransferSize=1048576",
                "tlsCertFile=" + CERTIFICATE.certificate(), "tlsKeyFile=" + CERTIFICATE.privateKey(),
                "[rocketmq]", "enabled=true", "port=" + netty.getListenPort(), "brokerIP1=127.0.0.1", "brokerName=" + config.getBrokerName(),
                "clusterName=" + config.getBrokerClusterName(), "namesrvAddr=" + config.getNamesrvAddr());
        new OurBroker("metaq_broker.cli", "start", "-f", file).start();
        return new BrokerController(config, netty, new NettyClientConfig(), store);
    }

    public static boolean initTopic(String topic, String nsAddr, String clusterName, int queues) {
        long end = System.currentTimeMillis() + TOPIC_DEADLINE_MS;
        while (!MQAdmin.createTopic(nsAddr, clusterName, topic, queues)) {
            Assert.assertTrue("the topic " + topic + " is not there", System.currentTimeMillis() < end);
        }
        return true;
    }

    public static boolean initTopic(String topic, String nsAddr, String clusterName) {
        return initTopic(topic, nsAddr, clusterName, 8);
    }

    private static SelfSignedCertificate certificate() {
        try {
            return new SelfSignedCertificate();
        } catch (CertificateException failed) {
            throw new IllegalStateException(failed);
        }
    }

    private static String written(String folder, String name, String... lines) {
        try {
            Files.createDirectories(new File(folder, "data").toPath());
            File file = new File(folder, name);
            Files.write(file.toPath(), Arrays.asList(lines), StandardCharsets.UTF_8);
            return file.getPath();
        } catch (IOException failed) {
            throw new IllegalStateException(failed);
        }
    }
}
