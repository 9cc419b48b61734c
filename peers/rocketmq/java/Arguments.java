import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.remoting.RPCHook;

/** {@code key=value} arguments of a program. */
final class Arguments {
    private final Map<String, String> given = new HashMap<>();

    /** Also makes the program end if it fails, which the client's own threads would prevent. */
    Arguments(String[] arguments) {
        Thread.setDefaultUncaughtExceptionHandler((thread, reason) -> {
            reason.printStackTrace();
            Runtime.getRuntime().halt(1);
        });
        for (String each : arguments) {
            int equals = each.indexOf('=');
            if (equals < 0) {
                throw new IllegalArgumentException(each + ": expected key=value");
            }
            given.put(each.substring(0, equals), each.substring(equals + 1));
        }
    }

    String text(String key) {
        String value = given.get(key);
        if (value == null) {
            throw new IllegalArgumentException(key + " is missing");
        }
        return value;
    }

    String text(String key, String otherwise) {
        return given.getOrDefault(key, otherwise);
    }

    int number(String key, int otherwise) {
        return given.containsKey(key) ? Integer.parseInt(given.get(key)) : otherwise;
    }

    double seconds(String key, double otherwise) {
        return given.containsKey(key) ? Double.parseDouble(given.get(key)) : otherwise;
    }

    /** Signs requests if {@code accessKey} and {@code secretKey} are given; null otherwise. */
    RPCHook account() {
        if (!given.containsKey("accessKey")) {
            return null;
        }
        return new AclClientRPCHook(new SessionCredentials(text("accessKey"), text("secretKey")));
    }

    /** The body of message {@code number}: its number in eight digits, then letters; never shorter than the digits. */
    static byte[] body(int number, int size) {
        byte[] body = new byte[Math.max(8, size)];
        byte[] digits = String.format("%08d", number).getBytes(StandardCharsets.US_ASCII);
        System.arraycopy(digits, 0, body, 0, 8);
        for (int at = 8; at < body.length; at++) {
            body[at] = (byte) ('a' + (number + at) % 26);
        }
        return body;
    }
}
