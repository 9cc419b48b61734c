import com.taobao.metamorphosis.Message;
import com.taobao.metamorphosis.client.MetaClientConfig;
import com.taobao.metamorphosis.client.MetaMessageSessionFactory;
import com.taobao.metamorphosis.client.TopicBrowser;
import com.taobao.metamorphosis.client.consumer.ConsumerConfig;
import com.taobao.metamorphosis.client.consumer.MessageConsumer;
import com.taobao.metamorphosis.client.consumer.MessageListener;
import com.taobao.metamorphosis.client.producer.MessageProducer;
import com.taobao.metamorphosis.client.producer.SendMessageCallback;
import com.taobao.metamorphosis.client.producer.SendResult;
import com.taobao.metamorphosis.utils.ZkUtils.ZKConfig;
import java.io.PrintStream;
import java.util.Iterator;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executor;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;

/**
 * What an application does with MetaQ's own client, for test_java_programs.py. Finds brokers in ZooKeeper alone.
 *
 * <p>Arguments: ZooKeeper's hosts, MetaQ's root there, a topic, what to do, how many messages. Prints a line for each
 * message: what is known of it, between tabs.
 */
public final class JavaClient {
    private static final int UNDER_WAY = 5000;
    private static final int PATIENCE_S = 60;

    private final MetaMessageSessionFactory factory;
    private final String topic;
    private final int count;
    private final PrintStream out;

    private JavaClient(MetaMessageSessionFactory factory, String topic, int count, PrintStream out) {
        this.factory = factory;
        this.topic = topic;
        this.count = count;
        this.out = out;
    }

    public static void main(String[] arguments) throws Exception {
        ZKConfig zookeeper = new ZKConfig();
        zookeeper.zkConnect = arguments[0];
        zookeeper.zkRoot = arguments[1];
        MetaClientConfig config = new MetaClientConfig();
        config.setZkConfig(zookeeper);
        PrintStream out = new PrintStream(System.out, false, "UTF-8");
        MetaMessageSessionFactory factory = new MetaMessageSessionFactory(config);
        JavaClient client = new JavaClient(factory, arguments[2], Integer.parseInt(arguments[4]), out);
        switch (arguments[3]) {
            case "produce":
                client.produce();
                break;
            case "browse":
                client.browse(1 << 20);
                break;
            case "browse-large":
                client.browse(4 << 20);
                break;
            case "consume":
                client.consume(1 << 20);
                break;
            case "consume-large":
                client.consume(4 << 20);
                break;
            case "transact":
                client.transact();
                break;
            default:
                throw new IllegalArgumentException(arguments[3]);
        }
        out.flush();
        factory.shutdown();
        System.exit(0);
    }

    /** Sends with callbacks, thousands under way, to the first partition; prints where each message is. */
    private void produce() throws Exception {
        MessageProducer producer = factory.createProducer((topic, partitions, message) -> partitions.get(0));
        producer.publish(topic);
        Semaphore room = new Semaphore(UNDER_WAY);
        for (int number = 0; number < count; number++) {
            room.acquire();
            String attribute = number % 100 == 7 ? "type" + number : null;
            Message message = new Message(topic, body(number).getBytes("UTF-8"), attribute);
            int current = number;
            producer.sendMessage(message, new SendMessageCallback() {
                @Override
                public void onMessageSent(SendResult result) {
                    tell(current, result, message);
                    room.release();
                }

                @Override
                public void onException(Throwable reason) {
                    print("failed", current, reason);
                    room.release();
                }
            }, PATIENCE_S, TimeUnit.SECONDS);
        }
        room.acquire(UNDER_WAY);
    }

    /** Prints all messages of the topic, partition after partition. */
    private void browse(int bytesMax) throws Exception {
        for (Iterator<Message> all = browser(bytesMax).iterator(); all.hasNext();) {
            print(all.next());
        }
    }

    private TopicBrowser browser(int bytesMax) {
        return factory.createTopicBrowser(topic, bytesMax, PATIENCE_S, TimeUnit.SECONDS);
    }

    /** Prints the first messages that a consumer of a new group is given; it may be given more. */
    private void consume(int bytesMax) throws Exception {
        MessageConsumer consumer = factory.createConsumer(new ConsumerConfig("group-" + System.nanoTime()));
        CountDownLatch missing = new CountDownLatch(count);
        consumer.subscribe(topic, bytesMax, new MessageListener() {
            @Override
            public void recieveMessages(Message message) {
                print(message);
                missing.countDown();
            }

            @Override
            public Executor getExecutor() {
                return null;
            }
        });
        consumer.completeSubscribe();
        if (!missing.await(PATIENCE_S, TimeUnit.SECONDS)) {
            print("missing", missing.getCount());
        }
        consumer.shutdown();
    }

    /** Sends messages in local transactions of two: every other one is rolled back. */
    private void transact() throws Exception {
        MessageProducer producer = factory.createProducer();
        producer.publish(topic);
        for (int number = 0; number < count; number += 2) {
            producer.beginTransaction();
            for (int each = number; each < number + 2; each++) {
                Message message = new Message(topic, body(each).getBytes("UTF-8"));
                SendResult sent = producer.sendMessage(message);
                if (!sent.isSuccess()) {
                    print("failed", each, sent.getErrorMessage());
                }
            }
            if (number % 4 == 0) {
                producer.commit();
                print("committed", number, number + 1);
            } else {
                producer.rollback();
            }
        }
    }

    /** Eight digits, and as many letters as make sizes differ. */
    private static String body(int number) {
        StringBuilder text = new StringBuilder(String.format("%08d", number));
        for (int more = number % 180; more > 0; more--) {
            text.append((char) ('a' + more % 26));
        }
        return text.toString();
    }

    private void tell(int number, SendResult sent, Message message) {
        if (sent.isSuccess()) {
            print("sent", number, sent.getPartition(), sent.getOffset(), message.getId());
        } else {
            print("failed", number, sent.getErrorMessage());
        }
    }

    private void print(Message message) {
        String attribute = message.hasAttribute() ? message.getAttribute() : "";
        print(message.getPartition(), message.getId(), attribute, new String(message.getData()));
    }

    private synchronized void print(Object... fields) {
        StringBuilder line = new StringBuilder();
        for (Object field : fields) {
            line.append(line.length() == 0 ? "" : "\t").append(field);
        }
        out.append(line).append('\n');
    }
}
