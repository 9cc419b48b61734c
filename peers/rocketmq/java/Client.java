import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A client that is told what to do by lines on its standard input: the line protocol of peers/rocketmq/conversation.py.
 *
 * <p>Arguments: nameServers role=producer|transactions|push|ordered|lite group; topic tags=* (or sql) retries=1 replies=no for
 * consumers; trace=no for producers; accessKey secretKey.
 */
public final class Client {
    private static final PrintStream OUT = new PrintStream(System.out, true);
    private static final int DEADLINE_MS = 10_000;
    private static final Map<String, LocalTransactionState> STATES = new HashMap<>();

    static {
        STATES.put("commit", LocalTransactionState.COMMIT_MESSAGE);
        STATES.put("rollback", LocalTransactionState.ROLLBACK_MESSAGE);
        STATES.put("unknown", LocalTransactionState.UNKNOW);
    }

    private final Arguments given;

    private Client(Arguments given) {
        this.given = given;
    }

    /** What ends a role. */
    private interface Closing {
        void close() throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        Arguments given = new Arguments(arguments);
        Client client = new Client(given);
        String role = given.text("role");
        if (role.equals("producer") || role.equals("transactions")) {
            client.produce(role.equals("transactions"));
        } else {
            Closing closing = client.consume(role);
            say("ready");
            BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            for (String line = in.readLine(); line != null && !line.equals("close"); line = in.readLine()) {
                throw new IllegalArgumentException(line);
            }
            closing.close();
        }
        say("closed");
        System.exit(0);
    }

    private void produce(boolean transactions) throws Exception {
        Map<String, LocalTransactionState> answers = new ConcurrentHashMap<>();
        DefaultMQProducer producer = transactions
                ? new TransactionMQProducer(given.text("group"), given.account())
                : new DefaultMQProducer(given.text("group"), given.account(), given.text("trace", "no").equals("yes"), null);
        if (transactions) {
            ((TransactionMQProducer) producer).setTransactionListener(new Transactions(answers));
        }
        producer.setNamesrvAddr(given.text("nameServers"));
        producer.setSendMsgTimeout(DEADLINE_MS);
        producer.setPollNameServerInterval(1000);
        producer.start();
        say("ready");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null && !line.equals("close"); line = in.readLine()) {
            Map<String, String> command = parsed(line);
            try {
                if (command.containsKey("wait")) {
                    Message reply = producer.request(message(command, command.get("body")), Long.parseLong(command.get("wait")));
                    say("replied\ttag=" + text(reply.getTags()) + "\tproperty=" + text(reply.getUserProperty("property"))
                            + "\tbody=" + new String(reply.getBody(), StandardCharsets.UTF_8));
                    continue;
                }
                SendResult result = sent(producer, command, answers);
                if (result.getSendStatus() != SendStatus.SEND_OK) {
                    throw new IllegalStateException(result.getSendStatus().name());
                }
                String where = result.getMessageQueue().getQueueId() + "\toffset=" + result.getQueueOffset();
                say("sent\tid=" + result.getMsgId() + "\tqueue=" + where + "\tplace=" + result.getOffsetMsgId());
            } catch (Exception reason) {
                say("failed\treason=" + String.valueOf(reason).replaceAll("\\s+", " "));
            }
        }
        producer.shutdown();
    }

    private static SendResult sent(
            DefaultMQProducer producer, Map<String, String> command, Map<String, LocalTransactionState> answers)
            throws Exception {
        if (command.containsKey("bodies")) {
            List<Message> messages = new ArrayList<>();
            for (String body : command.get("bodies").split(",")) {
                messages.add(message(command, body));
            }
            return producer.send(messages);
        }
        Message message = message(command, command.get("body"));
        if (command.containsKey("state")) {
            answers.put(command.get("body"), STATES.get(command.getOrDefault("then", "unknown")));
            return producer.sendMessageInTransaction(message, STATES.get(command.get("state")));
        }
        if (command.containsKey("order")) {
            int order = Integer.parseInt(command.get("order"));
            return producer.send(message, (queues, each, argument) -> queues.get(order % queues.size()), order);
        }
        return producer.send(message);
    }

    private static Message message(Map<String, String> command, String body) {
        Message message = new Message(command.get("topic"), body.getBytes(StandardCharsets.UTF_8));
        if (command.containsKey("tag")) {
            message.setTags(command.get("tag"));
        }
        if (command.containsKey("key")) {
            message.setKeys(command.get("key"));
        }
        if (command.containsKey("delay")) {
            message.setDelayTimeLevel(Integer.parseInt(command.get("delay")));
        }
        if (command.containsKey("property")) {
            message.putUserProperty("property", command.get("property"));
        }
        return message;
    }

    private Closing consume(String role) throws Exception {
        if (role.equals("lite")) {
            return lite();
        }
        DefaultMQPushConsumer consumer =
                new DefaultMQPushConsumer(given.text("group"), given.account(), new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(given.text("nameServers"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setMaxReconsumeTimes(given.number("retries", 1));
        consumer.setPollNameServerInterval(1000);
        String sql = given.text("sql", "");
        consumer.subscribe(
                given.text("topic"), sql.isEmpty() ? MessageSelector.byTag(given.text("tags", "*")) : MessageSelector.bySql(sql));
        if (role.equals("ordered")) {
            consumer.setConsumeThreadMin(4);
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                boolean good = taken(messages, null);
                context.setSuspendCurrentQueueTimeMillis(100);
                return good ? ConsumeOrderlyStatus.SUCCESS : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            });
        } else {
            DefaultMQProducer replier = given.text("replies", "no").equals("yes") ? replier() : null;
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                context.setDelayLevelWhenNextConsume(1);
                return taken(messages, replier) ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER;
            });
        }
        consumer.start();
        return consumer::shutdown;
    }

    private DefaultMQProducer replier() throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(given.text("group") + "-replies", given.account());
        producer.setNamesrvAddr(given.text("nameServers"));
        producer.setSendMsgTimeout(DEADLINE_MS);
        producer.start();
        return producer;
    }

    private static void reply(DefaultMQProducer replier, MessageExt request) {
        try {
            String body = "reply to " + new String(request.getBody(), StandardCharsets.UTF_8);
            Message reply = MessageUtil.createReplyMessage(request, body.getBytes(StandardCharsets.UTF_8));
            reply.setTags("reply");
            reply.putUserProperty("property", "of the reply");
            say("answered\tstatus=" + replier.send(reply).getSendStatus());
        } catch (Exception reason) {
            say("unanswered\treason=" + String.valueOf(reason).replaceAll("\\s+", " "));
        }
    }

    private Closing lite() throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(given.text("group"), given.account());
        consumer.setNamesrvAddr(given.text("nameServers"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPollNameServerInterval(1000);
        consumer.subscribe(given.text("topic"), given.text("tags", "*"));
        consumer.setAutoCommit(false);
        consumer.start();
        boolean[] closing = {false};
        Thread polling = new Thread(() -> {
            while (!closing[0]) {
                List<MessageExt> messages = consumer.poll(200);
                if (!messages.isEmpty()) {
                    taken(messages, null);
                    consumer.commitSync();
                }
            }
        });
        polling.start();
        return () -> {
            closing[0] = true;
            polling.join();
            consumer.shutdown();
        };
    }

    /** Print them; return whether all are good: a body that begins with "fail" is not. */
    private static boolean taken(List<MessageExt> messages, DefaultMQProducer replier) {
        boolean good = true;
        for (MessageExt each : messages) {
            String body = new String(each.getBody(), StandardCharsets.UTF_8);
            say("message\tqueue=" + each.getQueueId() + "\toffset=" + each.getQueueOffset() + "\ttag=" + text(each.getTags())
                    + "\tkey=" + text(each.getKeys()) + "\tproperty=" + text(each.getUserProperty("property"))
                    + "\ttimes=" + each.getReconsumeTimes() + "\tbody=" + body);
            good &= !body.startsWith("fail");
            if (replier != null && !body.startsWith("silent")) {
                reply(replier, each);
            }
        }
        return good;
    }

    private static String text(String value) {
        return value == null ? "" : value;
    }

    private static synchronized void say(String line) {
        OUT.println(line);
    }

    private static Map<String, String> parsed(String line) {
        String[] words = line.split("\t");
        Map<String, String> fields = new HashMap<>();
        for (int each = 1; each < words.length; each++) {
            int equals = words[each].indexOf('=');
            fields.put(words[each].substring(0, equals), words[each].substring(equals + 1));
        }
        return fields;
    }

    /** Answers what the command said, at once and when the broker checks back. */
    private static final class Transactions implements TransactionListener {
        private final Map<String, LocalTransactionState> answers;

        Transactions(Map<String, LocalTransactionState> answers) {
            this.answers = answers;
        }

        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            return (LocalTransactionState) argument;
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            String body = new String(message.getBody(), StandardCharsets.UTF_8);
            say("checked\tbody=" + body);
            return answers.getOrDefault(body, LocalTransactionState.UNKNOW);
        }
    }
}
