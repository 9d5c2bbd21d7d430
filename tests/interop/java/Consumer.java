import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

import software.amazon.awssdk.auth.credentials.AwsBasicCredentials;
import software.amazon.awssdk.auth.credentials.StaticCredentialsProvider;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.services.cloudwatch.CloudWatchAsyncClient;
import software.amazon.awssdk.services.dynamodb.DynamoDbAsyncClient;
import software.amazon.awssdk.services.kinesis.KinesisAsyncClient;
import software.amazon.kinesis.common.ConfigsBuilder;
import software.amazon.kinesis.common.InitialPositionInStream;
import software.amazon.kinesis.common.InitialPositionInStreamExtended;
import software.amazon.kinesis.common.KinesisClientUtil;
import software.amazon.kinesis.common.StreamIdentifier;
import software.amazon.kinesis.coordinator.CoordinatorConfig;
import software.amazon.kinesis.coordinator.Scheduler;
import software.amazon.kinesis.leases.LeaseManagementConfig;
import software.amazon.kinesis.lifecycle.events.InitializationInput;
import software.amazon.kinesis.lifecycle.events.LeaseLostInput;
import software.amazon.kinesis.lifecycle.events.ProcessRecordsInput;
import software.amazon.kinesis.lifecycle.events.ShardEndedInput;
import software.amazon.kinesis.lifecycle.events.ShutdownRequestedInput;
import software.amazon.kinesis.metrics.NullMetricsFactory;
import software.amazon.kinesis.processor.ShardRecordProcessor;
import software.amazon.kinesis.processor.SingleStreamTracker;
import software.amazon.kinesis.retrieval.KinesisClientRecord;
import software.amazon.kinesis.retrieval.RetrievalSpecificConfig;
import software.amazon.kinesis.retrieval.fanout.FanOutConfig;
import software.amazon.kinesis.retrieval.polling.PollingConfig;

/**
 * A plain KCL consumer that a test can watch and steer. It prints one line per event, tab-separated, after an '@';
 * "stop" on standard input shuts it down in good order, "quit" or end of input without waiting for anything.
 * Settings are system properties, see main.
 */
public final class Consumer {
    private static final PrintStream OUT = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    private static final AtomicInteger DELIVERED = new AtomicInteger();
    private static final int LIMIT = Integer.getInteger("records", Integer.MAX_VALUE);
    private static final long PAUSE_MILLIS = Long.getLong("pauseMillis", 0L);
    private static final boolean PREPARES = Boolean.getBoolean("prepares");

    private static synchronized void say(String event, Object... fields) {
        StringBuilder line = new StringBuilder("@").append(event);
        for (Object field : fields) {
            line.append('\t').append(field);
        }
        OUT.println(line);
    }

    /**
     * Checkpoints at the last record of every batch that it took. Beyond the limit it takes nothing more, and where
     * it stopped is where its checkpoint stands: in the middle of a batch, or of an aggregated record.
     */
    private static final class Processor implements ShardRecordProcessor {
        private String shard;
        private boolean ignoresRecords;

        @Override
        public void initialize(InitializationInput input) {
            shard = input.shardId();
            say("INITIALIZE", shard, input.extendedSequenceNumber().sequenceNumber(),
                    input.extendedSequenceNumber().subSequenceNumber(),
                    input.pendingCheckpointSequenceNumber() == null
                            ? "-" : input.pendingCheckpointSequenceNumber().sequenceNumber());
        }

        @Override
        public void processRecords(ProcessRecordsInput input) {
            KinesisClientRecord last = null;
            for (KinesisClientRecord record : input.records()) {
                if (DELIVERED.incrementAndGet() > LIMIT) {
                    ignoresRecords = true;
                    break;
                }
                byte[] data = new byte[record.data().remaining()];
                record.data().get(data);
                say("RECORD", shard, record.sequenceNumber(), record.subSequenceNumber(), record.partitionKey(),
                        new String(data, StandardCharsets.UTF_8));
                last = record;
            }
            if (last != null) {
                String sequence = last.sequenceNumber();
                long subSequence = last.subSequenceNumber();
                if (PREPARES) {
                    checkpoint(() -> input.checkpointer()
                            .prepareCheckpoint(sequence, subSequence, "state".getBytes(StandardCharsets.UTF_8)));
                    pause();
                }
                checkpoint(() -> input.checkpointer().checkpoint(sequence, subSequence));
            }
            if (ignoresRecords) {
                say("LIMIT", shard);
            }
            pause();
        }

        private static void pause() {
            if (PAUSE_MILLIS > 0) {
                try {
                    Thread.sleep(PAUSE_MILLIS);
                } catch (InterruptedException interrupted) {
                    Thread.currentThread().interrupt();
                }
            }
        }

        @Override
        public void leaseLost(LeaseLostInput input) {
            say("LEASE_LOST", shard);
        }

        @Override
        public void shardEnded(ShardEndedInput input) {
            checkpoint(() -> input.checkpointer().checkpoint());
            say("SHARD_ENDED", shard);
        }

        @Override
        public void shutdownRequested(ShutdownRequestedInput input) {
            if (!ignoresRecords) {
                checkpoint(() -> input.checkpointer().checkpoint());
            }
            say("SHUTDOWN_REQUESTED", shard);
        }

        private interface Checkpoint {
            void make() throws Exception;
        }

        private void checkpoint(Checkpoint checkpoint) {
            try {
                checkpoint.make();
                say("CHECKPOINTED", shard);
            } catch (Exception problem) {
                say("CHECKPOINT_FAILED", shard, problem);
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        String application = System.getProperty("application");
        String stream = System.getProperty("stream");
        String worker = System.getProperty("worker");
        URI endpoint = URI.create(System.getProperty("endpoint"));
        StaticCredentialsProvider credentials =
                StaticCredentialsProvider.create(AwsBasicCredentials.create("local", "local"));
        Region region = Region.of(System.getProperty("region", "us-east-1"));

        KinesisAsyncClient kinesis = KinesisClientUtil.createKinesisAsyncClient(KinesisAsyncClient.builder()
                .region(region).credentialsProvider(credentials).endpointOverride(endpoint));
        DynamoDbAsyncClient dynamo = DynamoDbAsyncClient.builder()
                .region(region).credentialsProvider(credentials).endpointOverride(endpoint).build();
        CloudWatchAsyncClient cloudWatch = CloudWatchAsyncClient.builder()
                .region(region).credentialsProvider(credentials).endpointOverride(endpoint).build();

        SingleStreamTracker tracker = new SingleStreamTracker(
                StreamIdentifier.singleStreamInstance(stream),
                InitialPositionInStreamExtended.newInitialPosition(
                        InitialPositionInStream.valueOf(System.getProperty("position", "TRIM_HORIZON"))));
        ConfigsBuilder configs = new ConfigsBuilder(
                tracker, application, kinesis, dynamo, cloudWatch, worker, Processor::new);

        long failover = Long.getLong("failoverMillis", 10_000L);
        LeaseManagementConfig leases = configs.leaseManagementConfig()
                .failoverTimeMillis(failover)
                .shardSyncIntervalMillis(1_000L)
                .leasesRecoveryAuditorExecutionFrequencyMillis(5_000L)
                .leasesRecoveryAuditorInconsistencyConfidenceThreshold(1);
        // Outside of EC2, ECS and EKS there is nothing to ask for the CPU's use.
        leases.workerUtilizationAwareAssignmentConfig().disableWorkerMetrics(true);
        long reporting = Long.getLong("reportMillis", 30_000L);
        leases.workerUtilizationAwareAssignmentConfig().workerMetricsReporterFreqInMillis(reporting);
        leases.workerUtilizationAwareAssignmentConfig()
                .varianceBalancingFrequency(Integer.getInteger("balanceEvery", 3));
        CoordinatorConfig coordinator = configs.coordinatorConfig()
                .parentShardPollIntervalMillis(1_000L)
                .shardConsumerDispatchPollIntervalMillis(200L);
        RetrievalSpecificConfig retrieval = "FANOUT".equals(System.getProperty("retrieval"))
                ? new FanOutConfig(kinesis).streamName(stream).applicationName(application)
                : new PollingConfig(stream, kinesis).maxRecords(Integer.getInteger("batch", 100))
                        .idleTimeBetweenReadsInMillis(Long.getLong("idle", 250L));

        Scheduler scheduler = new Scheduler(
                configs.checkpointConfig(), coordinator, leases, configs.lifecycleConfig(),
                configs.metricsConfig().metricsFactory(new NullMetricsFactory()), configs.processorConfig(),
                configs.retrievalConfig().retrievalSpecificConfig(retrieval));
        say("STARTED", worker, Scheduler.class.getPackage().getImplementationVersion());
        Thread running = new Thread(scheduler, "scheduler");
        running.setDaemon(true);
        running.start();

        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        String command = commands.readLine();
        if ("stop".equals(command)) {
            scheduler.startGracefulShutdown().get(60, TimeUnit.SECONDS);
            say("STOPPED", worker);
        }
        System.exit(0);
    }
}
