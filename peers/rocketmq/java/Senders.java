import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Sends single messages from {@code threads} threads, each of which waits for the answer to one before it sends the next,
 * to the queues in turn; prints "rate", messages and seconds for each run.
 *
 * <p>Arguments: as Write's; threads=1 runs=3.
 */
public final class Senders {
    private Senders() {
    }

    public static void main(String[] arguments) throws Exception {
        Arguments given = new Arguments(arguments);
        DefaultMQProducer producer = Write.started(given);
        List<MessageQueue> queues = Write.sorted(producer.fetchPublishMessageQueues(given.text("topic")));
        int count = given.number("count", 0);
        for (int run = 0; run < given.number("runs", 3); run++) {
            AtomicInteger next = new AtomicInteger();
            AtomicReference<Throwable> failure = new AtomicReference<>();
            List<Thread> threads = new ArrayList<>();
            for (int each = 0; each < given.number("threads", 1); each++) {
                threads.add(new Thread(() -> {
                    try {
                        for (int number = next.getAndIncrement(); number < count; number = next.getAndIncrement()) {
                            send(producer, given, number, queues.get(number % queues.size()));
                        }
                    } catch (Exception reason) {
                        failure.compareAndSet(null, reason);
                    }
                }));
            }
            long start = System.nanoTime();
            threads.forEach(Thread::start);
            for (Thread each : threads) {
                each.join();
            }
            if (failure.get() != null) {
                throw new IllegalStateException("a send failed", failure.get());
            }
            System.out.println("rate\t" + count + "\t" + (System.nanoTime() - start) / 1e9);
            System.out.flush();
        }
        System.exit(0);
    }

    private static void send(DefaultMQProducer producer, Arguments given, int number, MessageQueue queue)
            throws Exception {
        SendResult result = producer.send(Write.message(given, number), queue);
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            throw new IllegalStateException(result.toString());
        }
    }
}
