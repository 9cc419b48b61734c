import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/**
 * A producer and a push consumer for each topic, which go on whatever happens to their broker: numbers are sent one after
 * the other, each once by this program. Prints with tabs "sent", topic, number and ms since 1970 for what was acknowledged,
 * "failed", topic, number, ms and reason, "got", topic and number. A line on standard input ends sending ("stopped" is
 * printed), its end ends the program.
 *
 * <p>Arguments: topics=TOPIC@NAMESERVERS,... pauseMs=10; pollMs, how often routes are asked for, is the client's default
 * without one.
 */
public final class Endure {
    private static final int ATTEMPTS = 5;
    private static volatile boolean stopping;

    private Endure() {
    }

    public static void main(String[] arguments) throws Exception {
        Arguments given = new Arguments(arguments);
        List<DefaultMQProducer> producers = new ArrayList<>();
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        List<Thread> senders = new ArrayList<>();
        for (String each : given.text("topics").split(",")) {
            String topic = each.substring(0, each.indexOf('@'));
            String nameServers = each.substring(each.indexOf('@') + 1);
            consumers.add(startedConsumer(given, topic, nameServers));
            DefaultMQProducer producer = producer(given, topic, nameServers);
            producers.add(producer);
            senders.add(new Thread(() -> send(producer, topic, given.number("pauseMs", 10))));
        }
        senders.forEach(Thread::start);
        print("ready");
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        if (commands.readLine() != null) {
            stopping = true;
            for (Thread sender : senders) {
                sender.join();
            }
            print("stopped");
            while (commands.readLine() != null) {
                continue;
            }
        }
        stopping = true;
        consumers.forEach(DefaultMQPushConsumer::shutdown);
        producers.forEach(DefaultMQProducer::shutdown);
        System.exit(0);
    }

    private static DefaultMQProducer producer(Arguments given, String topic, String nameServers) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("producers-" + topic);
        producer.setNamesrvAddr(nameServers);
        producer.setInstanceName(topic);  // a client of its own: those of a process that share a name share name servers
        producer.setPollNameServerInterval(given.number("pollMs", producer.getPollNameServerInterval()));
        producer.start();
        return producer;
    }

    /** The client of 5.5.0 does not start if the name server that it asks first refuses: then another one is started. */
    private static DefaultMQPushConsumer startedConsumer(Arguments given, String topic, String nameServers)
            throws Exception {
        for (int attempt = 1;; attempt++) {
            DefaultMQPushConsumer consumer = consumer(given, topic, nameServers, attempt);
            try {
                consumer.start();
                return consumer;
            } catch (IllegalStateException refused) {
                consumer.shutdown();
                if (attempt == ATTEMPTS) {
                    throw refused;
                }
            }
        }
    }

    private static DefaultMQPushConsumer consumer(Arguments given, String topic, String nameServers, int attempt)
            throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("consumers-" + topic);
        consumer.setNamesrvAddr(nameServers);
        consumer.setInstanceName(topic + "-consumer-" + attempt);
        consumer.setPollNameServerInterval(given.number("pollMs", consumer.getPollNameServerInterval()));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(1);
        consumer.setConsumeThreadMax(1);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(each -> print("got", topic, new String(each.getBody(), StandardCharsets.US_ASCII)));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        return consumer;
    }

    private static void send(DefaultMQProducer producer, String topic, int pauseMs) {
        for (int number = 0; !stopping; number++) {
            byte[] body = Integer.toString(number).getBytes(StandardCharsets.US_ASCII);
            try {
                SendResult result = producer.send(new Message(topic, body));
                if (result.getSendStatus() == SendStatus.SEND_OK) {
                    print("sent", topic, number, System.currentTimeMillis());
                } else {
                    print("failed", topic, number, System.currentTimeMillis(), result.getSendStatus());
                }
            } catch (Exception reason) {
                print("failed", topic, number, System.currentTimeMillis(), oneLine(reason));
            }
            pause(pauseMs);
        }
    }

    private static void pause(int pauseMs) {
        try {
            Thread.sleep(pauseMs);
        } catch (InterruptedException reason) {
            throw new IllegalStateException(reason);
        }
    }

    private static String oneLine(Exception reason) {
        return reason.toString().replaceAll("\\s+", " ");
    }

    private static synchronized void print(Object... fields) {
        StringBuilder line = new StringBuilder();
        for (Object field : fields) {
            line.append(line.length() == 0 ? "" : "\t").append(field);
        }
        System.out.print(line.append('\n'));
        System.out.flush();
    }
}
