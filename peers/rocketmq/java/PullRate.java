import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Pulls all messages of the topic, throws them away, and prints "rate", messages and seconds for each run.
 *
 * <p>Arguments: nameServers topic; queue=-1 (all, one after the other) runs=3 atOnce=32.
 */
@SuppressWarnings("deprecation")
public final class PullRate {
    private PullRate() {
    }

    public static void main(String[] arguments) throws Exception {
        Arguments given = new Arguments(arguments);
        DefaultMQPullConsumer consumer = Dump.started(given);
        List<MessageQueue> queues = Write.sorted(consumer.fetchSubscribeMessageQueues(given.text("topic")));
        int only = given.number("queue", -1);
        for (int run = 0; run < given.number("runs", 3); run++) {
            long count = 0;
            long start = System.nanoTime();
            for (MessageQueue queue : only < 0 ? queues : queues.subList(only, only + 1)) {
                count += pulled(consumer, queue, given.number("atOnce", 32));
            }
            System.out.println("rate\t" + count + "\t" + (System.nanoTime() - start) / 1e9);
            System.out.flush();
        }
        System.exit(0);
    }

    private static long pulled(DefaultMQPullConsumer consumer, MessageQueue queue, int atOnce) throws Exception {
        long offset = consumer.minOffset(queue);
        long end = consumer.maxOffset(queue);
        long count = 0;
        while (offset < end) {
            PullResult result = consumer.pull(queue, "*", offset, atOnce);
            if (result.getPullStatus() == PullStatus.FOUND) {
                count += result.getMsgFoundList().size();
            }
            offset = result.getNextBeginOffset();
        }
        return count;
    }
}
