package org.apache.iceberg.rest;

import java.io.FileWriter;
import java.lang.reflect.Method;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import org.eclipse.jetty.ee10.servlet.ServletContextHandler;
import org.eclipse.jetty.ee10.servlet.ServletHolder;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.ServerConnector;

/**
 * Apache Iceberg's REST catalog of its own tests, on 127.0.0.1 and a free port, which it writes into the file that is
 * its argument. {@link RESTCatalogServer} itself listens on all addresses, and on a port that it is given. The
 * environment has the properties of the catalog, as there: CATALOG_WAREHOUSE, CATALOG_S3_ENDPOINT.
 */
public final class LocalCatalog {
  private LocalCatalog() {}

  public static void main(String[] args) throws Exception {
    Method backend = RESTCatalogServer.class.getDeclaredMethod("initializeBackendCatalog");
    backend.setAccessible(true);
    RESTCatalogServer.CatalogContext context =
        (RESTCatalogServer.CatalogContext) backend.invoke(new RESTCatalogServer());
    ServletContextHandler handler = new ServletContextHandler();
    handler.addServlet(
        new ServletHolder(new RESTCatalogServlet(new RESTServerCatalogAdapter(context))), "/*");

    Server server = new Server();
    ServerConnector connector = new ServerConnector(server);
    connector.setHost("127.0.0.1");
    server.addConnector(connector);
    server.setHandler(handler);
    server.start();
    Path ready = Path.of(args[0]);
    Path unfinished = Path.of(args[0] + ".unfinished");
    try (FileWriter port = new FileWriter(unfinished.toFile())) {
      port.write(Integer.toString(connector.getLocalPort()));
    }
    Files.move(unfinished, ready, StandardCopyOption.ATOMIC_MOVE);
    server.join();
  }
}
