import java.io.FileWriter;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import org.apache.hadoop.hive.conf.HiveConf;
import org.apache.hadoop.hive.metastore.HiveMetaStore;
import org.apache.hadoop.hive.metastore.IHMSHandler;
import org.apache.hadoop.hive.metastore.TSetIpAddressProcessor;
import org.apache.hadoop.hive.metastore.txn.TxnDbUtil;
import org.apache.thrift.server.TThreadPoolServer;
import org.apache.thrift.transport.TServerSocket;

/**
 * The metastore of Hive, with its database in Derby, on 127.0.0.1 and a free port, which it writes into the file that
 * is its first argument. The second one is its folder.
 */
public final class LocalMetastore {
  private LocalMetastore() {}

  public static void main(String[] args) throws Exception {
    HiveConf conf = new HiveConf();
    conf.set("javax.jdo.option.ConnectionURL", "jdbc:derby:;databaseName=" + args[1] + "/db;create=true");
    conf.set("datanucleus.schema.autoCreateAll", "true");
    conf.set("datanucleus.connectionPoolingType", "none");
    conf.set("hive.metastore.schema.verification", "false");
    conf.set("hive.metastore.event.db.notification.api.auth", "false");
    conf.set("hive.metastore.warehouse.dir", args[1] + "/warehouse");
    TxnDbUtil.prepDb(conf); // the tables of locks, which nothing else makes
    IHMSHandler handler =
        HiveMetaStore.newRetryingHMSHandler(
            new HiveMetaStore.HMSHandler("metastore", conf, false), conf, true);
    ServerSocket socket = new ServerSocket();
    socket.bind(new InetSocketAddress(InetAddress.getByName("127.0.0.1"), 0));
    TThreadPoolServer server =
        new TThreadPoolServer(
            new TThreadPoolServer.Args(new TServerSocket(socket))
                .processor(new TSetIpAddressProcessor<>(handler)));
    Path unfinished = Path.of(args[0] + ".unfinished");
    try (FileWriter port = new FileWriter(unfinished.toFile())) {
      port.write(Integer.toString(socket.getLocalPort()));
    }
    Files.move(unfinished, Path.of(args[0]), StandardCopyOption.ATOMIC_MOVE);
    server.serve();
  }
}
