package suites;

import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Commands of mqadmin in one process. A line of standard input is a command with its arguments, with tabs between them;
 * the answer is a line: "ended" or "running" (after so many milliseconds, which are the argument), a tab, and what the
 * command has printed, in base64.
 */
public final class AdminSweep {
    private AdminSweep() {
    }

    public static void main(String[] arguments) throws Exception {
        long patience = Long.parseLong(arguments[0]);
        PrintStream answers = System.out;
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split("\t");
            ByteArrayOutputStream said = new ByteArrayOutputStream();
            PrintStream into = new PrintStream(said, true, "UTF-8");
            System.setOut(into);
            System.setErr(into);
            Thread command = new Thread(() -> MQAdminStartup.main0(words, null));
            command.setDaemon(true);
            command.start();
            command.join(patience);
            String state = command.isAlive() ? "running" : "ended";
            answers.println(state + "\t" + Base64.getEncoder().encodeToString(said.toByteArray()));
            answers.flush();
        }
        Runtime.getRuntime().halt(0);
    }
}
