import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Sends batches from {@code threads} threads, each of which waits for the answer to one before it sends the next, to the
 * queues in turn, and prints "rate", messages and seconds for each run.
 *
 * <p>Arguments: as Write's; batch=1000 threads=1 runs=3.
 */
public final class SendRate {
    private final DefaultMQProducer producer;
    private final Arguments given;
    private final List<MessageQueue> queues;
    private final int batch;
    private final int count;

    private SendRate(Arguments given) throws Exception {
        this.given = given;
        producer = Write.started(given);
        queues = Write.sorted(producer.fetchPublishMessageQueues(given.text("topic")));
        batch = given.number("batch", 1000);
        count = given.number("count", 0);
    }

    public static void main(String[] arguments) throws Exception {
        Arguments given = new Arguments(arguments);
        SendRate rate = new SendRate(given);
        for (int run = 0; run < given.number("runs", 3); run++) {
            long start = System.nanoTime();
            rate.run(given.number("threads", 1));
            System.out.println("rate\t" + rate.count + "\t" + (System.nanoTime() - start) / 1e9);
            System.out.flush();
        }
        System.exit(0);
    }

    private void run(int threadCount) throws Exception {
        AtomicInteger next = new AtomicInteger();
        AtomicReference<Throwable> failure = new AtomicReference<>();
        List<Thread> threads = new ArrayList<>();
        for (int each = 0; each < threadCount; each++) {
            threads.add(new Thread(() -> {
                try {
                    for (int number = next.getAndIncrement(); number * batch < count; number = next.getAndIncrement()) {
                        send(number);
                    }
                } catch (Exception reason) {
                    failure.compareAndSet(null, reason);
                }
            }));
        }
        threads.forEach(Thread::start);
        for (Thread each : threads) {
            each.join();
        }
        if (failure.get() != null) {
            throw new IllegalStateException("a send failed", failure.get());
        }
    }

    private void send(int number) throws Exception {
        List<Message> messages = new ArrayList<>(batch);
        int first = number * batch;
        for (int each = first; each < Math.min(count, first + batch); each++) {
            messages.add(Write.message(given, each));
        }
        SendResult result = producer.send(messages, queues.get(number % queues.size()));
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            throw new IllegalStateException(result.toString());
        }
    }
}
