import java.util.concurrent.TimeUnit;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;

/**
 * A push consumer of a new group that throws messages away until it has had {@code count}; prints "rate", messages and
 * seconds from the first one to the last one.
 *
 * <p>Arguments: nameServers topic group count; deadline=120 (seconds).
 */
public final class PushRate {
    private PushRate() {
    }

    public static void main(String[] arguments) throws Exception {
        Arguments given = new Arguments(arguments);
        int count = given.number("count", 0);
        AtomicLong first = new AtomicLong();
        CountDownLatch missing = new CountDownLatch(count);
        DefaultMQPushConsumer consumer =
                new DefaultMQPushConsumer(given.text("group"), given.account(), new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(given.text("nameServers"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(32);
        consumer.subscribe(given.text("topic"), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            first.compareAndSet(0, System.nanoTime());
            messages.forEach(each -> missing.countDown());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        if (!missing.await((long) given.seconds("deadline", 120), TimeUnit.SECONDS)) {
            throw new IllegalStateException(missing.getCount() + " messages are missing");
        }
        System.out.println("rate\t" + count + "\t" + (System.nanoTime() - first.get()) / 1e9);
        System.out.flush();
        consumer.shutdown();
        System.exit(0);
    }
}
