import java.util.Random;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.common.MetricName;
import org.apache.kafka.common.metrics.*;
import org.apache.kafka.common.metrics.stats.*;
import org.apache.kafka.server.quota.QuotaUtils;

/** Prints what Kafka's own classes make of records at virtual times: kind, samples, window, bound, time, value, throttle. */
public class QuotaTrace {
  public static void main(String[] a) {
    Random random = new Random(7);
    for (int run = 0; run < 40; run++) {
      boolean bucket = run % 2 == 1;
      int samples = new int[] {11, 11, 2, 3, 1}[run % 5];
      int seconds = run % 3 == 0 ? 2 : 1;
      double bound = new double[] {1000, 0.5, 12345, 3}[run % 4];
      Metrics metrics = new Metrics(new MetricConfig());
      MetricName name = new MetricName("m", "g", "", Map.of());
      MetricConfig config = new MetricConfig().samples(samples).timeWindow(seconds, TimeUnit.SECONDS).quota(new Quota(bound, true));
      Sensor sensor = metrics.sensor("s");
      sensor.add(name, bucket ? new TokenBucket() : new Rate(), config);
      long now = 1_000_000_000_000L;
      for (int i = 0; i < 60; i++) {
        now += random.nextInt(10) == 0 ? random.nextInt(40_000) : random.nextInt(10) < 5 ? random.nextInt(50) : random.nextInt(3000);
        double value = random.nextInt(8) == 0 ? -1 : Math.round(bound * (bucket ? 8 : 6) * random.nextDouble() * 100) / 100.0;
        long throttle = 0;
        try { sensor.record(value, now, true); }
        catch (QuotaViolationException e) {
          throttle = bucket ? Math.round(-e.value() / e.bound() * 1000) : QuotaUtils.throttleTime(e, now);
        }
        System.out.println((bucket ? "bucket" : "rate") + "\t" + run + "\t" + samples + "\t" + seconds + "\t" + bound + "\t" + (now - 1_000_000_000_000L) + "\t" + value + "\t" + throttle);
      }
      metrics.close();
    }
  }
}
