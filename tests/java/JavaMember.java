import com.taobao.metamorphosis.Message;
import com.taobao.metamorphosis.client.MetaClientConfig;
import com.taobao.metamorphosis.client.MetaMessageSessionFactory;
import com.taobao.metamorphosis.client.consumer.ConsumerConfig;
import com.taobao.metamorphosis.client.consumer.LoadBalanceStrategy;
import com.taobao.metamorphosis.client.consumer.MessageConsumer;
import com.taobao.metamorphosis.client.consumer.MessageListener;
import com.taobao.metamorphosis.client.consumer.storage.MysqlOffsetStorage;
import com.taobao.metamorphosis.utils.ZkUtils.ZKConfig;
import java.io.FileOutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.sql.Connection;
import java.sql.DriverManager;
import java.util.concurrent.Executor;
import javax.sql.DataSource;

/**
 * A member of a consumer group, with MetaQ's own client, for test_mixed_group.py.
 *
 * <p>Arguments: ZooKeeper's hosts, MetaQ's root there, a topic, a group, a consumer id, ms of a session, the strategy, the
 * file for a line for each message: ms since 1970, partition, the text. With a ninth one, the URL of a MariaDB, offsets are
 * in MetaQ's table there instead of ZooKeeper. Leaves when its standard input ends.
 */
public final class JavaMember {
    private JavaMember() {}

    public static void main(String[] arguments) throws Exception {
        ZKConfig zookeeper = new ZKConfig();
        zookeeper.zkConnect = arguments[0];
        zookeeper.zkRoot = arguments[1];
        zookeeper.zkSessionTimeoutMs = Integer.parseInt(arguments[5]);
        zookeeper.zkSyncTimeMs = 500;
        MetaClientConfig config = new MetaClientConfig();
        config.setZkConfig(zookeeper);
        MetaMessageSessionFactory factory = new MetaMessageSessionFactory(config);
        ConsumerConfig member = new ConsumerConfig(arguments[4], arguments[3]);
        member.setMaxDelayFetchTimeInMills(200);
        member.setLoadBalanceStrategyType(LoadBalanceStrategy.Type.valueOf(arguments[6]));
        MessageConsumer consumer = arguments.length > 8
                ? factory.createConsumer(member, new MysqlOffsetStorage(database(arguments[8])))
                : factory.createConsumer(member);
        PrintStream out = new PrintStream(new FileOutputStream(arguments[7], true), true, "UTF-8");
        consumer.subscribe(arguments[2], 1 << 20, new MessageListener() {
            @Override
            public void recieveMessages(Message message) {
                String text = new String(message.getData());
                out.print(System.currentTimeMillis() + "\t" + message.getPartition() + "\t" + text + "\n");
            }

            @Override
            public Executor getExecutor() {
                return null;
            }
        });
        consumer.completeSubscribe();
        while (System.in.read() >= 0) {
            continue;
        }
        consumer.shutdown();
        factory.shutdown();
        System.exit(0);
    }

    /**
     * MetaQ's statements name two columns that are reserved words since MySQL 5.6, without quotes: they are quoted here, the
     * statements are its own.
     */
    private static DataSource database(String url) {
        return proxy(DataSource.class, (made, method, values) -> {
            if (!method.getName().equals("getConnection")) {
                throw new UnsupportedOperationException(method.getName());
            }
            Connection connection = DriverManager.getConnection(url);
            return proxy(Connection.class, (one, called, given) -> {
                if (called.getName().equals("prepareStatement")) {
                    given[0] = given[0].toString().replaceAll("\\b(partition|offset)\\b", "`$1`");
                }
                try {
                    return called.invoke(connection, given);
                } catch (InvocationTargetException failed) {
                    throw failed.getCause();
                }
            });
        });
    }

    private static <T> T proxy(Class<T> type, InvocationHandler handler) {
        return type.cast(Proxy.newProxyInstance(JavaMember.class.getClassLoader(), new Class<?>[] {type}, handler));
    }
}
