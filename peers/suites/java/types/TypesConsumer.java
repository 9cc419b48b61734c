package suites;

import com.taobao.metamorphosis.Message;
import com.taobao.metamorphosis.client.MetaClientConfig;
import com.taobao.metamorphosis.client.MetaMessageSessionFactory;
import com.taobao.metamorphosis.client.consumer.ConsumerConfig;
import com.taobao.metamorphosis.client.consumer.MessageConsumer;
import com.taobao.metamorphosis.client.consumer.MessageListener;
import com.taobao.metamorphosis.utils.ZkUtils.ZKConfig;
import java.util.Arrays;
import java.util.concurrent.Executor;

/** A consumer of MetaQ 2.1: ZooKeeper's address, a topic, a group, types. Prints type and body of each message. */
public final class TypesConsumer {
    private TypesConsumer() {
    }

    public static void main(String[] arguments) throws Exception {
        MetaClientConfig config = new MetaClientConfig();
        config.setZkConfig(new ZKConfig("/meta", arguments[0], 10_000, 10_000, 2000, true));
        MessageConsumer consumer = new MetaMessageSessionFactory(config).createConsumer(new ConsumerConfig(arguments[2]));
        String[] types = Arrays.copyOfRange(arguments, 3, arguments.length);
        consumer.subscribe(arguments[1], 1 << 20, new MessageListener() {
            @Override
            public void recieveMessages(Message message) {
                System.out.println("got\t" + message.getAttribute() + "\t" + new String(message.getData()));
            }

            @Override
            public Executor getExecutor() {
                return null;
            }
        }, types);
        consumer.completeSubscribe();
    }
}
