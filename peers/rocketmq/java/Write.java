import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Writes messages {@code first} to {@code first + count - 1}: message n to queue n % queues of the topic, in the order
 * of broker names and queue ids.
 *
 * <p>Arguments: nameServers topic count; first=0 size=100 batch=1 (messages of a synchronous send) underWay=200
 * (single messages sent without waiting) compressAbove=4096 (bytes) tags=0 (so many tags, "tag0" ...) keys=0 (so many
 * keys for a message) properties=0 (so many of the application's) delayLevel=0 flag=0 accessKey secretKey.
 */
public final class Write {
    private static final int DEADLINE_MS = 30_000;

    private final Arguments given;
    private final DefaultMQProducer producer;
    private final List<MessageQueue> queues;
    private final AtomicReference<Throwable> failure = new AtomicReference<>();

    private Write(Arguments given, DefaultMQProducer producer) throws Exception {
        this.given = given;
        this.producer = producer;
        this.queues = sorted(published(producer, given.text("topic")));
    }

    public static void main(String[] arguments) throws Exception {
        Arguments given = new Arguments(arguments);
        DefaultMQProducer producer = started(given);
        Write write = new Write(given, producer);
        if (given.number("batch", 1) > 1) {
            write.batches();
        } else {
            write.singles();
        }
        if (write.failure.get() != null) {
            throw new IllegalStateException("a send failed", write.failure.get());
        }
        System.out.println("written\t" + given.number("count", 0));
        System.exit(0);
    }

    static DefaultMQProducer started(Arguments given) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("writer", given.account());
        producer.setNamesrvAddr(given.text("nameServers"));
        producer.setSendMsgTimeout(DEADLINE_MS);
        producer.setMaxMessageSize(4 << 20);
        producer.setCompressMsgBodyOverHowmuch(given.number("compressAbove", 4096));
        producer.start();
        return producer;
    }

    /** The queues of a topic that exists: on a busy machine a name server's first answer may come too late. */
    static List<MessageQueue> published(DefaultMQProducer producer, String topic) throws Exception {
        long end = System.currentTimeMillis() + DEADLINE_MS;
        while (true) {
            try {
                return producer.fetchPublishMessageQueues(topic);
            } catch (MQClientException failed) {
                if (System.currentTimeMillis() > end) {
                    throw failed;
                }
                Thread.sleep(200);
            }
        }
    }

    static List<MessageQueue> sorted(Iterable<MessageQueue> found) {
        List<MessageQueue> queues = new ArrayList<>();
        found.forEach(queues::add);
        queues.sort(Comparator.comparing(MessageQueue::getBrokerName).thenComparing(MessageQueue::getQueueId));
        return queues;
    }

    static Message message(Arguments given, int number) {
        int tags = given.number("tags", 0);
        String tag = tags == 0 ? null : "tag" + number % tags;
        byte[] body = Arguments.body(number, given.number("size", 100));
        Message message = new Message(given.text("topic"), tag, null, given.number("flag", 0), body, true);
        List<String> keys = new ArrayList<>();
        for (int each = 0; each < given.number("keys", 0); each++) {
            keys.add("key" + number + "-" + each);
        }
        if (!keys.isEmpty()) {
            message.setKeys(keys);
        }
        for (int each = 0; each < given.number("properties", 0); each++) {
            message.putUserProperty("property" + each, number + " \u00e4\u6d88\u606f " + each);
        }
        if (given.number("delayLevel", 0) > 0) {
            message.setDelayTimeLevel(given.number("delayLevel", 0));
        }
        return message;
    }

    /** Singles, sent without waiting for the one before. */
    private void singles() throws Exception {
        int underWay = given.number("underWay", 200);
        Semaphore permits = new Semaphore(underWay);
        int first = given.number("first", 0);
        for (int number = first; number < first + given.number("count", 0); number++) {
            permits.acquire();
            producer.send(message(given, number), queues.get(number % queues.size()), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    check(result);
                    permits.release();
                }

                @Override
                public void onException(Throwable reason) {
                    failure.compareAndSet(null, reason);
                    permits.release();
                }
            });
        }
        permits.acquire(underWay);
    }

    /** Batches for one queue each, waiting for each. */
    private void batches() throws Exception {
        int batch = given.number("batch", 1);
        int first = given.number("first", 0);
        int end = first + given.number("count", 0);
        List<List<Message>> waiting = new ArrayList<>();
        queues.forEach(queue -> waiting.add(new ArrayList<>()));
        for (int number = first; number < end; number++) {
            int queue = number % queues.size();
            List<Message> messages = waiting.get(queue);
            messages.add(message(given, number));
            if (messages.size() == batch) {
                check(producer.send(messages, queues.get(queue)));
                messages.clear();
            }
        }
        for (int queue = 0; queue < queues.size(); queue++) {
            if (!waiting.get(queue).isEmpty()) {
                check(producer.send(waiting.get(queue), queues.get(queue)));
            }
        }
    }

    private void check(SendResult result) {
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            failure.compareAndSet(null, new IllegalStateException(result.toString()));
        }
    }
}
