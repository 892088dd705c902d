import java.io.ByteArrayOutputStream;
import java.io.ByteArrayInputStream;
import java.io.BufferedReader;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs the main methods of Kafka's command-line tools in one JVM, several at once: a JVM for each would take a second or two to start.
 *
 * Lines in:  run ID CLASS INPUT ARGUMENT...   and   stop ID   (INPUT and ARGUMENT in base64, "-" when empty)
 * Lines out: ID out|err BYTES   and   ID exit CODE   (BYTES in base64), and first of all   0 ready -
 *
 * Each tool has a thread group. What the threads of the group print is the output of the tool. Its first call of exit sets its exit code.
 * Its later output is dropped, as if the process had ended: some tools catch the error that ends their thread, and print it. The shutdown
 * hooks that its threads add are removed from the JVM (--add-opens java.base/java.lang=ALL-UNNAMED), and run when the tool ends.
 */
public final class Tools {
    private static final PrintStream ANSWERS = System.out;

    private static final Map<String, Tool> TOOLS = new ConcurrentHashMap<>();

    private static final class Exited extends Error {
        Exited() {
            super(null, null, false, false);
        }
    }

    private static final class Tool extends ThreadGroup {
        final InputStream input;
        private Integer code;

        Tool(String id, byte[] input) {
            super(id);
            this.input = new ByteArrayInputStream(input);
        }

        synchronized boolean exited() {
            return code != null;
        }

        void exit(int wanted) {
            if (exited()) {
                return;
            }
            runHooks();
            synchronized (this) {
                System.out.flush();
                System.err.flush();
                code = wanted;
            }
        }

        void runHooks() {
            for (Thread hook : takeHooks(this)) {
                hook.run();
            }
        }

        @Override
        public void uncaughtException(Thread thread, Throwable error) {
            if (!(error instanceof Exited)) {
                error.printStackTrace();
            }
        }
    }

    /** Bytes go to the tool whose thread writes them, line by line. */
    private static final class Routed extends OutputStream {
        private final String name;
        private final Map<Tool, ByteArrayOutputStream> pending = new ConcurrentHashMap<>();

        Routed(String name) {
            this.name = name;
        }

        @Override
        public void write(int one) {
            write(new byte[] {(byte) one}, 0, 1);
        }

        @Override
        public synchronized void write(byte[] bytes, int offset, int length) {
            Tool tool = current();
            if (tool != null && !tool.exited()) {
                pending.computeIfAbsent(tool, key -> new ByteArrayOutputStream()).write(bytes, offset, length);
            }
        }

        @Override
        public synchronized void flush() {
            Tool tool = current();
            ByteArrayOutputStream bytes = tool == null ? null : pending.remove(tool);
            if (bytes != null && bytes.size() > 0) {
                answer(tool.getName() + " " + name + " " + Base64.getEncoder().encodeToString(bytes.toByteArray()));
            }
        }
    }

    private static Tool current() {
        for (ThreadGroup group = Thread.currentThread().getThreadGroup(); group != null; group = group.getParent()) {
            if (group instanceof Tool) {
                return (Tool) group;
            }
        }
        return null;
    }

    private static void answer(String line) {
        synchronized (ANSWERS) {
            ANSWERS.println(line);
            ANSWERS.flush();
        }
    }

    private static byte[] decode(String word) {
        return word.equals("-") ? new byte[0] : Base64.getDecoder().decode(word);
    }

    private static List<Thread> takeHooks(Tool tool) {
        List<Thread> taken = new ArrayList<>();
        try {
            Class<?> owner = Class.forName("java.lang.ApplicationShutdownHooks");
            Field field = owner.getDeclaredField("hooks");
            field.setAccessible(true);
            synchronized (owner) {
                for (Object hook : ((Map<?, ?>) field.get(null)).keySet()) {
                    if (((Thread) hook).getThreadGroup() == tool) {
                        taken.add((Thread) hook);
                    }
                }
            }
        } catch (ReflectiveOperationException wrong) {
            throw new IllegalStateException(wrong);
        }
        taken.forEach(Runtime.getRuntime()::removeShutdownHook);
        return taken;
    }

    private static void begin(Tool tool, Runnable work) {
        Thread thread = new Thread(tool, work);
        thread.setDaemon(true);
        thread.start();
    }

    private static void start(String[] words) {
        String[] arguments = new String[words.length - 4];
        for (int i = 0; i < arguments.length; i++) {
            arguments[i] = new String(decode(words[i + 4]), StandardCharsets.UTF_8);
        }
        Tool tool = new Tool(words[1], decode(words[3]));
        TOOLS.put(words[1], tool);
        begin(tool, () -> run(tool, words[2], arguments));
    }

    private static void run(Tool tool, String main, String[] arguments) {
        try {
            Class.forName(main).getMethod("main", String[].class).invoke(null, (Object) arguments);
            tool.exit(0);
        } catch (InvocationTargetException raised) {
            if (!(raised.getCause() instanceof Exited)) {
                raised.getCause().printStackTrace();
            }
            tool.exit(1);
        } catch (ReflectiveOperationException wrong) {
            wrong.printStackTrace();
            tool.exit(1);
        }
        answer(tool.getName() + " exit " + tool.code);
    }

    public static void main(String[] none) throws Exception {
        InputStream commands = System.in;
        System.setOut(new PrintStream(new Routed("out"), true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(new Routed("err"), true, StandardCharsets.UTF_8));
        System.setIn(new InputStream() {
            @Override
            public int read() throws java.io.IOException {
                Tool tool = current();
                return tool == null ? -1 : tool.input.read();
            }

            @Override
            public int read(byte[] bytes, int offset, int length) throws java.io.IOException {
                Tool tool = current();
                return tool == null ? -1 : tool.input.read(bytes, offset, length);
            }
        });
        Exit.Procedure exit = (code, message) -> {
            if (message != null) {
                System.err.println(message);
            }
            Tool tool = current();
            if (tool != null) {
                tool.exit(code);
            }
            throw new Exited();
        };
        Exit.setExitProcedure(exit);
        Exit.setHaltProcedure(exit);
        answer("0 ready -");
        BufferedReader lines = new BufferedReader(new InputStreamReader(commands, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            if (words[0].equals("run")) {
                start(words);
            } else {
                Tool tool = TOOLS.get(words[1]);
                begin(tool, tool::runHooks);
            }
        }
        System.exit(0);
    }
}
