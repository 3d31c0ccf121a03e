package repository

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"
	"k8s.io/client-go/rest"

	"github.com/gotower/gotower/internal/freeport"
	"github.com/gotower/gotower/tap"
	"github.com/gotower/gotower/tap/tappb"
)

// TestReadme builds and runs each Go block in README.md, with services' names replaced by test
// servers' addresses, and listening addresses by free ones. The blocks become functions of one
// program, each in its own file, because linking takes longest. The short form only compiles them.
// The first two blocks are the types, which must match package layer's, and a whole program.
func TestReadme(t *testing.T) {
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?ms)^```go\n(.*?)^```$").FindAllStringSubmatch(string(text), -1)
	require.Len(t, blocks, 7)
	types, whole := blocks[0][1], blocks[1][1]
	blocks = blocks[2:]
	hello, err := os.ReadFile("examples/hello/client/main.go")
	require.NoError(t, err)
	_, hello, _ = bytes.Cut(hello, []byte("\n")) // the package comment
	service, err := os.ReadFile("layer/service.go")
	require.NoError(t, err)
	for line := range strings.Lines(types) {
		assert.Contains(t, string(service), line)
	}
	assert.Equal(t, string(hello), whole, "the program of examples/hello/client, which its test runs")
	assert.LessOrEqual(t, strings.Count(whole, "\n"), 30, "lines of the whole program")
	addr, tapAddr := freeport.Addr(t), freeport.Addr(t)
	replaced := strings.NewReplacer(`":8080"`, `"`+addr+`"`, "tap.DefaultAddress", `"`+tapAddr+`"`,
		"web-headless.default.svc.cluster.local:8080", namedServer(t, "web"), "books-headless.default.svc.cluster.local:8080", namedServer(t, "books"))
	tests := []struct {
		name     string
		maxLines int
		imports  string
		end      string // follows the block
		check    func(t *testing.T, output func() string)
	}{
		{
			"client", 5, `context fmt io net/http github.com/gotower/gotower/httpclient`,
			`if err != nil { panic(err) }; text, _ := io.ReadAll(rsp.Body); fmt.Println(rsp.StatusCode, string(text))`,
			func(t *testing.T, output func() string) {
				t.Helper()
				require.Eventually(t, func() bool { return strings.Contains(output(), "200 web /hello") }, time.Minute, time.Millisecond, output())
			},
		},
		{
			"cluster", 5, `context log github.com/gotower/gotower/httpclient github.com/gotower/gotower/resolve/k8s k8s.io/client-go/kubernetes k8s.io/client-go/rest`,
			`_ = web`,
			func(t *testing.T, output func() string) {
				t.Helper()
				outside := func() bool { return strings.Contains(output(), rest.ErrNotInCluster.Error()) }
				require.Eventually(t, outside, time.Minute, time.Millisecond, "the test is no Pod")
			},
		},
		{
			"routes", 5, `context fmt log net/http google.golang.org/grpc google.golang.org/grpc/credentials/insecure ` +
				`github.com/gotower/gotower/httpclient github.com/gotower/gotower/layer ` +
				`profilesource=github.com/gotower/gotower/profiles/linkerd endpointsource=github.com/gotower/gotower/resolve/linkerd`,
			`if err != nil { log.Fatal(err) }; fmt.Println(layer.Describe(web), client.Transport == web)`,
			func(t *testing.T, output func() string) {
				t.Helper()
				require.Eventually(t, func() bool { return strings.Contains(output(), "profiles ") }, time.Minute, time.Millisecond, output())
			},
		},
		{
			"gateway", 15, `context log net/http os github.com/gotower/gotower/discover github.com/gotower/gotower/httpclient github.com/gotower/gotower/layer/httplayer`, "",
			func(t *testing.T, output func() string) {
				t.Helper()
				assert.Equal(t, "200 web /", fetchURL(t, "http://"+addr+"/"))
				assert.Equal(t, "200 books /books/1", fetchURL(t, "http://"+addr+"/books/1"))
				require.Eventually(t, func() bool { return strings.Contains(output(), `/books/1`) }, time.Minute, time.Millisecond, "access log")
			},
		},
		{
			"server", 3, `context log net/http github.com/gotower/gotower/layer/httplayer github.com/gotower/gotower/tap`, "",
			func(t *testing.T, _ func() string) {
				t.Helper()
				cc, err := grpc.NewClient(tapAddr, grpc.WithTransportCredentials(insecure.NewCredentials()))
				require.NoError(t, err)
				t.Cleanup(func() { cc.Close() })
				every := &tappb.TopRequest{Every: durationpb.New(100 * time.Millisecond)}
				for top, err := range tap.Top(t.Context(), cc, every, grpc.WaitForReady(true)) {
					require.NoError(t, err)
					if len(top.GetRows()) > 0 {
						assert.Equal(t, "/watched", top.GetRows()[0].GetPath())
						break
					}
					assert.Equal(t, "200 mux", fetchURL(t, "http://"+addr+"/watched"))
				}
			},
		},
	}
	dir := t.TempDir()
	full, clause := os.Getenv("GOTOWER_TESTS") == "full", "package main\n"
	if !full {
		clause = "package readme\n" // it is not linked
	}
	files := map[string]string{"main": clause + `
import (
	"context"
	"os"
)

func main() {
	map[string]func(context.Context){"client": client, "cluster": cluster, "routes": routes, "gateway": gateway, "server": server}[os.Args[1]](context.Background())
}
`}
	for i, tt := range tests {
		code := blocks[i][1]
		assert.LessOrEqual(t, strings.Count(code, "\n"), tt.maxLines, "lines of %s", tt.name)
		source := clause + "import (\n"
		for path := range strings.FieldsSeq(tt.imports) {
			name, full, named := strings.Cut(path, "=")
			if !named {
				name, full = "", path
			}
			source += "\t" + name + " \"" + full + "\"\n"
		}
		source += ")\nfunc " + tt.name + "(ctx context.Context) {\n"
		if tt.name == "server" {
			source += "\tmux := http.NewServeMux()\n\tmux.HandleFunc(\"/\", func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte(\"mux\")) })\n"
		}
		files[tt.name] = source + replaced.Replace(code) + tt.end + "\n}\n"
	}
	for name, source := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name+".go"), []byte(source), 0o600))
	}
	sources, err := filepath.Glob(filepath.Join(dir, "*.go"))
	require.NoError(t, err)
	program := filepath.Join(dir, "program")
	out, err := exec.CommandContext(t.Context(), "go", append([]string{"build", "-ldflags=-s -w", "-o", program}, sources...)...).CombinedOutput()
	require.NoError(t, err, "%s\n%s", out, files)
	if !full {
		return
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { tt.check(t, start(t, program, tt.name)) })
	}
}

// namedServer starts a server that responds with its name and the request's path, and returns its
// address.
func namedServer(t *testing.T, name string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, name+" "+r.URL.Path) }))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// start runs a program until the test ends. It returns a function that returns the program's output
// so far.
func start(t *testing.T, program, arg string) func() string {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	run := exec.CommandContext(ctx, program, arg)
	run.Stdout, run.Stderr = log, log
	require.NoError(t, run.Start())
	t.Cleanup(func() {
		stop()
		_ = run.Wait()
		log.Close()
	})
	return func() string {
		text, err := os.ReadFile(log.Name())
		require.NoError(t, err)
		return string(text)
	}
}

// fetchURL waits until a server listens, and returns the status and the body of url.
func fetchURL(t *testing.T, url string) string {
	t.Helper()
	var rsp *http.Response
	require.Eventually(t, func() bool {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
		if err != nil {
			return false
		}
		rsp, err = http.DefaultClient.Do(req)
		return err == nil
	}, time.Minute, 10*time.Millisecond)
	defer rsp.Body.Close()
	text, err := io.ReadAll(rsp.Body)
	require.NoError(t, err)
	status, _, _ := strings.Cut(rsp.Status, " ")
	return status + " " + string(text)
}
