package suites;

import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.List;
import org.apache.rocketmq.tools.command.MQAdminStartup;
import org.apache.rocketmq.tools.command.SubCommand;

/**
 * Commands of mqadmin in one process. A line of standard input is a command with its arguments, with tabs between them;
 * the answer is a line: "ended" or "running" (after so many milliseconds, which are the argument), a tab, and what the
 * command has printed, in base64. What the threads of a command that goes on print later is not counted as another's.
 *
 * With the argument "names", it prints the names of the tool's commands.
 */
public final class AdminSweep {
    private AdminSweep() {
    }

    /** The tool's list of commands has another name in each release, and no way to it. */
    private static void printNames() throws Exception {
        MQAdminStartup.initCommand();
        for (Field field : MQAdminStartup.class.getDeclaredFields()) {
            if (field.getType() == List.class) {
                field.setAccessible(true);
                for (Object command : (List<?>) field.get(null)) {
                    System.out.println(((SubCommand) command).commandName());
                }
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        if (arguments[0].equals("names")) {
            printNames();
            return;
        }
        long patience = Long.parseLong(arguments[0]);
        PrintStream answers = System.out;
        InheritableThreadLocal<ByteArrayOutputStream> said = new InheritableThreadLocal<ByteArrayOutputStream>() {
            @Override
            protected ByteArrayOutputStream initialValue() {
                return new ByteArrayOutputStream();
            }
        };
        PrintStream into = new PrintStream(new OutputStream() {
            @Override
            public void write(int one) {
                said.get().write(one);
            }

            @Override
            public void write(byte[] data, int from, int count) {
                said.get().write(data, from, count);
            }
        }, true, "UTF-8");
        System.setOut(into);
        System.setErr(into);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split("\t");
            said.set(new ByteArrayOutputStream());  // the command's threads have it, too
            Thread command = new Thread(() -> MQAdminStartup.main0(words, null));
            command.setDaemon(true);
            command.start();
            command.join(patience);
            String state = command.isAlive() ? "running" : "ended";
            answers.println(state + "\t" + Base64.getEncoder().encodeToString(said.get().toByteArray()));
            answers.flush();
        }
        Runtime.getRuntime().halt(0);
    }
}
