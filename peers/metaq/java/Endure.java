import com.taobao.metamorphosis.Message;
import com.taobao.metamorphosis.client.MetaClientConfig;
import com.taobao.metamorphosis.client.MetaMessageSessionFactory;
import com.taobao.metamorphosis.client.consumer.ConsumerConfig;
import com.taobao.metamorphosis.client.consumer.MessageConsumer;
import com.taobao.metamorphosis.client.consumer.MessageListener;
import com.taobao.metamorphosis.client.producer.MessageProducer;
import com.taobao.metamorphosis.client.producer.SendResult;
import com.taobao.metamorphosis.utils.ZkUtils.ZKConfig;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.Executor;

/**
 * A producer and a consumer of MetaQ's own client, which go on whatever happens to their broker, found in ZooKeeper: numbers
 * are sent one after the other, each once by this program. Prints with tabs "sent", topic, number and ms since 1970 for what
 * was acknowledged, "failed", topic, number, ms and reason, "got", topic and number. A line on standard input ends sending
 * ("stopped" is printed), its end ends the program.
 *
 * <p>Arguments: ZooKeeper's hosts, MetaQ's root there, a topic, ms between two messages.
 */
public final class Endure {
    private static volatile boolean stopping;

    private Endure() {
    }

    public static void main(String[] arguments) throws Exception {
        ZKConfig zookeeper = new ZKConfig();
        zookeeper.zkConnect = arguments[0];
        zookeeper.zkRoot = arguments[1];
        MetaClientConfig config = new MetaClientConfig();
        config.setZkConfig(zookeeper);
        MetaMessageSessionFactory factory = new MetaMessageSessionFactory(config);
        String topic = arguments[2];
        MessageConsumer consumer = factory.createConsumer(new ConsumerConfig("consumers-" + topic));
        consumer.subscribe(topic, 1 << 20, new MessageListener() {
            @Override
            public void recieveMessages(Message message) {
                print("got", topic, new String(message.getData(), StandardCharsets.US_ASCII));
            }

            @Override
            public Executor getExecutor() {
                return null;
            }
        });
        consumer.completeSubscribe();
        MessageProducer producer = factory.createProducer();
        producer.publish(topic);
        int pauseMs = Integer.parseInt(arguments[3]);
        Thread sender = new Thread(() -> send(producer, topic, pauseMs));
        sender.start();
        print("ready");
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        if (commands.readLine() != null) {
            stopping = true;
            sender.join();
            print("stopped");
            while (commands.readLine() != null) {
                continue;
            }
        }
        stopping = true;
        consumer.shutdown();
        factory.shutdown();
        System.exit(0);
    }

    private static void send(MessageProducer producer, String topic, int pauseMs) {
        for (int number = 0; !stopping; number++) {
            byte[] body = Integer.toString(number).getBytes(StandardCharsets.US_ASCII);
            try {
                SendResult result = producer.sendMessage(new Message(topic, body));
                if (result.isSuccess()) {
                    print("sent", topic, number, System.currentTimeMillis());
                } else {
                    String reason = String.valueOf(result.getErrorMessage()).replaceAll("\\s+", " ");
                    print("failed", topic, number, System.currentTimeMillis(), reason);
                }
            } catch (Exception reason) {
                print("failed", topic, number, System.currentTimeMillis(), reason.toString().replaceAll("\\s+", " "));
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

    private static synchronized void print(Object... fields) {
        StringBuilder line = new StringBuilder();
        for (Object field : fields) {
            line.append(line.length() == 0 ? "" : "\t").append(field);
        }
        System.out.print(line.append('\n'));
        System.out.flush();
    }
}
