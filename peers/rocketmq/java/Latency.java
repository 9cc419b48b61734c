import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Sends messages at an even rate and takes the time from before each send to its delivery by a push consumer in the same
 * process; prints "latency" and the milliseconds of the given percentiles.
 *
 * <p>Arguments: nameServers topic group; count=1000 warmUp=200 perSecond=200 size=100 percentiles=50,99.
 */
public final class Latency {
    /** In every message of this run: a topic may have those of earlier ones. */
    private static final long RUN = System.nanoTime() ^ ProcessHandle.current().pid() << 40;

    private Latency() {
    }

    public static void main(String[] arguments) throws Exception {
        Arguments given = new Arguments(arguments);
        int warmUp = given.number("warmUp", 200);
        int count = warmUp + given.number("count", 1000);
        long[] taken = new long[count];
        CountDownLatch missing = new CountDownLatch(count);
        AtomicInteger ready = new AtomicInteger();
        DefaultMQPushConsumer consumer = started(given, taken, missing, ready);
        DefaultMQProducer producer = Write.started(given);
        while (ready.get() == 0) { // until the consumer has its queues, which is not what is measured
            producer.send(message(given, -1));
            Thread.sleep(100);
        }
        long interval = 1_000_000_000L / given.number("perSecond", 200);
        long next = System.nanoTime();
        for (int number = 0; number < count; number++) {
            while (System.nanoTime() < next) {
                Thread.sleep(0, 100_000);
            }
            producer.send(message(given, number));
            next += interval;
        }
        if (!missing.await(60, TimeUnit.SECONDS)) {
            throw new IllegalStateException(missing.getCount() + " messages are missing");
        }
        long[] measured = Arrays.copyOfRange(taken, warmUp, count);
        Arrays.sort(measured);
        StringBuilder line = new StringBuilder("latency");
        for (String percentile : given.text("percentiles", "50,99").split(",")) {
            int at = (int) Math.ceil(measured.length * Double.parseDouble(percentile) / 100) - 1;
            line.append('\t').append(measured[at] / 1e6);
        }
        System.out.println(line);
        System.out.flush();
        consumer.shutdown();
        System.exit(0);
    }

    private static DefaultMQPushConsumer started(
            Arguments given, long[] taken, CountDownLatch missing, AtomicInteger ready) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(given.text("group"));
        consumer.setNamesrvAddr(given.text("nameServers"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(given.text("topic"), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            long now = System.nanoTime();
            for (MessageExt each : messages) {
                ByteBuffer body = ByteBuffer.wrap(each.getBody());
                int number = body.getInt();
                long sent = body.getLong();
                if (body.remaining() < Long.BYTES || body.getLong() != RUN) {
                    continue;
                }
                if (number < 0) {
                    ready.incrementAndGet();
                } else if (taken[number] == 0) {
                    taken[number] = now - sent;
                    missing.countDown();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return consumer;
    }

    private static Message message(Arguments given, int number) {
        ByteBuffer body = ByteBuffer.allocate(Math.max(20, given.number("size", 100)));
        body.putInt(number).putLong(System.nanoTime()).putLong(RUN);
        return new Message(given.text("topic"), body.array());
    }
}
