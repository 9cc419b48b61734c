package suites;

import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.TimeUnit;

/**
 * A process of this project, such as its broker: started, waited for until it says that it is ready, stopped.
 *
 * <p>The system property {@code suites.python} has the words that start Python; {@code suites.folder} is where the
 * output goes.
 */
public final class OurBroker {
    private static final long STOP_SECONDS = 60;
    private static int started;

    private final List<String> command = new ArrayList<>();
    private final File log;
    private Process process;

    /** The command is {@code python -m module arguments}. */
    public OurBroker(String module, String... arguments) {
        command.addAll(Arrays.asList(System.getProperty("suites.python").split("\n")));
        command.add("-m");
        command.add(module);
        command.addAll(Arrays.asList(arguments));
        log = new File(System.getProperty("suites.folder"), module + "-" + started++ + ".log");
    }

    /** Starts it and returns when it has written its first line. */
    public synchronized void start() {
        try {
            process = new ProcessBuilder(command)
                    .redirectError(ProcessBuilder.Redirect.appendTo(log)).start();
            Runtime.getRuntime().addShutdownHook(new Thread(this::stop));
            BufferedReader lines =
                    new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8));
            String line = lines.readLine();
            if (line == null || !line.contains("ready")) {
                throw new IllegalStateException("it did not start: " + line + ", see " + log);
            }
        } catch (IOException failed) {
            throw new IllegalStateException(String.join(" ", command), failed);
        }
    }

    /** Stops it as an operator does, with SIGTERM, and waits. */
    public synchronized void stop() {
        if (process == null) {
            return;
        }
        process.destroy();
        try {
            if (!process.waitFor(STOP_SECONDS, TimeUnit.SECONDS)) {
                process.destroyForcibly().waitFor();
            }
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
        process = null;
    }
}
