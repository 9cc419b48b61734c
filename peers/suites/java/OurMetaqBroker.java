package suites;

import com.taobao.metamorphosis.server.utils.MetaConfig;
import java.io.File;
import java.io.IOException;
import java.nio.charset.Charset;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Properties;

/**
 * This project's broker with the original's configuration file, but for what a suite sets in memory: the folder of the
 * data, the host, and ZooKeeper's address.
 */
public final class OurMetaqBroker {
    private static final Charset BYTES = StandardCharsets.ISO_8859_1;
    private static final List<String> OURS = Arrays.asList("hostName", "dataPath", "zk.zkConnect");

    private final OurBroker process;

    /** {@code roles} are the plug-ins of the original: metaslave, samsa, gregor, with their properties. */
    public OurMetaqBroker(MetaConfig config, Map<String, Properties> roles) {
        List<String> arguments = new ArrayList<>();
        arguments.add("start");
        try {
            File folder = Files.createTempDirectory(new File(System.getProperty("suites.folder")).toPath(), "ours-").toFile();
            arguments.add("-f");
            arguments.add(written(folder, config));
            if (roles != null) {
                for (Map.Entry<String, Properties> role : roles.entrySet()) {
                    arguments.add("-F" + role.getKey() + "=" + written(folder, role.getKey(), role.getValue()));
                }
            }
        } catch (IOException failed) {
            throw new IllegalStateException(failed);
        }
        process = new OurBroker("metaq_broker.cli", arguments.toArray(new String[0]));
    }

    public void start() {
        process.start();
    }

    public void stop() {
        process.stop();
    }

    private static String written(File folder, MetaConfig config) throws IOException {
        List<String> lines = new ArrayList<>();
        for (String line : Files.readAllLines(new File(config.getConfigFilePath()).toPath(), BYTES)) {
            if (OURS.contains(line.split("=", 2)[0].trim())) {
                continue;
            }
            lines.add(line);
            if (line.trim().equals("[system]")) {
                lines.add("hostName=127.0.0.1");
                lines.add("dataPath=" + config.getDataPath());
            } else if (line.trim().equals("[zookeeper]")) {
                lines.add("zk.zkConnect=" + System.getProperty("suites.zookeeper"));
            }
        }
        File file = new File(folder, "server.ini");
        Files.write(file.toPath(), lines, BYTES);
        return file.getPath();
    }

    /** Without recoverOffset, which this project's broker refuses: offsets are the same on both of its brokers. */
    private static String written(File folder, String name, Properties properties) throws IOException {
        List<String> lines = new ArrayList<>();
        for (String key : properties.stringPropertyNames()) {
            if (!key.equals("recoverOffset")) {
                lines.add(key + "=" + properties.getProperty(key));
            }
        }
        File file = new File(folder, name + ".properties");
        Files.write(file.toPath(), lines, BYTES);
        return file.getPath();
    }
}
