import java.io.BufferedWriter;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.Base64;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Writes everything that a topic has, as the Java client decodes it, to a file: a JSON object a line, queue after queue,
 * each in order.
 *
 * <p>Arguments: nameServers topic file; tags=* group=dumper accessKey secretKey.
 */
@SuppressWarnings("deprecation")
public final class Dump {
    private static final int AT_ONCE = 32;

    private Dump() {
    }

    public static void main(String[] arguments) throws Exception {
        Arguments given = new Arguments(arguments);
        DefaultMQPullConsumer consumer = started(given);
        long count = 0;
        try (BufferedWriter out = Files.newBufferedWriter(Paths.get(given.text("file")), StandardCharsets.UTF_8)) {
            for (MessageQueue queue : Write.sorted(consumer.fetchSubscribeMessageQueues(given.text("topic")))) {
                count += dump(consumer, queue, given.text("tags", "*"), out);
            }
        }
        System.out.println("read\t" + count);
        System.exit(0);
    }

    static DefaultMQPullConsumer started(Arguments given) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(given.text("group", "dumper"), given.account());
        consumer.setNamesrvAddr(given.text("nameServers"));
        consumer.start();
        return consumer;
    }

    private static long dump(DefaultMQPullConsumer consumer, MessageQueue queue, String tags, BufferedWriter out)
            throws Exception {
        long offset = consumer.minOffset(queue);
        long end = consumer.maxOffset(queue);
        long count = 0;
        while (offset < end) {
            PullResult result = consumer.pull(queue, tags, offset, AT_ONCE);
            if (result.getPullStatus() == PullStatus.FOUND) {
                for (MessageExt message : result.getMsgFoundList()) {
                    out.write(line(queue, message));
                    out.newLine();
                    count++;
                }
            } else if (result.getPullStatus() != PullStatus.NO_MATCHED_MSG) {
                throw new IllegalStateException(queue + " at " + offset + ": " + result);
            }
            offset = result.getNextBeginOffset();
        }
        return count;
    }

    private static String line(MessageQueue queue, MessageExt message) throws IOException {
        Map<String, Object> fields = new TreeMap<>();
        fields.put("topic", message.getTopic());
        fields.put("broker_name", queue.getBrokerName());
        fields.put("queue_id", message.getQueueId());
        fields.put("queue_offset", message.getQueueOffset());
        fields.put("message_id", message.getMsgId());
        fields.put("offset_message_id", ((MessageClientExt) message).getOffsetMsgId());
        fields.put("keys", message.getKeys());
        fields.put("tags", message.getTags());
        fields.put("properties", message.getProperties());
        fields.put("born_timestamp", message.getBornTimestamp());
        fields.put("store_timestamp", message.getStoreTimestamp());
        fields.put("born_host", host(message.getBornHost()));
        fields.put("store_host", host(message.getStoreHost()));
        fields.put("reconsume_times", message.getReconsumeTimes());
        fields.put("flag", message.getFlag());
        fields.put("sys_flag", message.getSysFlag());
        fields.put("body_crc", message.getBodyCRC());
        fields.put("store_size", message.getStoreSize());
        fields.put("commit_log_offset", message.getCommitLogOffset());
        fields.put("prepared_transaction_offset", message.getPreparedTransactionOffset());
        byte[] body = message.getBody();
        fields.put("value", body == null ? null : Base64.getEncoder().encodeToString(body));
        StringBuilder out = new StringBuilder();
        append(out, fields);
        return out.toString();
    }

    private static String host(SocketAddress address) {
        InetSocketAddress host = (InetSocketAddress) address;
        return host.getAddress().getHostAddress() + ":" + host.getPort();
    }

    private static void append(StringBuilder out, Object value) {
        if (value instanceof Map) {
            char before = '{';
            for (Map.Entry<?, ?> entry : new TreeMap<>((Map<?, ?>) value).entrySet()) {
                out.append(before);
                append(out, entry.getKey());
                out.append(':');
                append(out, entry.getValue());
                before = ',';
            }
            out.append(before == '{' ? "{}" : "}");
        } else if (value instanceof String) {
            quote(out, (String) value);
        } else {
            out.append(value);
        }
    }

    private static void quote(StringBuilder out, String text) {
        out.append('"');
        for (int at = 0; at < text.length(); at++) {
            char each = text.charAt(at);
            if (each == '"' || each == '\\') {
                out.append('\\').append(each);
            } else if (each < ' ') {
                out.append(String.format("\\u%04x", (int) each));
            } else {
                out.append(each);
            }
        }
        out.append('"');
    }
}
