package hello_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/internal/freeport"
	"github.com/gotower/gotower/tap"
	"github.com/gotower/gotower/tap/tappb"
)

const patience = 2 * time.Minute

// TestPrograms builds and runs the programs. Programs without a check end by themselves.
func TestPrograms(t *testing.T) {
	listen, watch := freeport.Addr(t), freeport.Addr(t)
	tests := []struct {
		name   string
		args   []string
		output []string // parts of the output
		check  func(t *testing.T)
	}{
		{name: "client", output: []string{"target=web.example", "retry ", "endpoints=2 ready=2 picks=100"}},
		{name: "grpc", output: []string{"SERVING <nil> from 127.0.0.1:"}},
		{name: "layer", output: []string{
			`attempt: "", error connection reset`, `attempt: "HELLO", error <nil>`, "HELLO <nil>", "retries=1", "\ntimed\n",
		}},
		{name: "kit", output: []string{"hello, go-kit <nil> after 2 calls", "use the same types on both sides"}},
		{
			name: "gateway", args: []string{"-listen", listen},
			output: []string{"curl -i http://" + listen, `"upstream":"books"`, `"upstream":"web"`, `"status":429`},
			check:  func(t *testing.T) { t.Helper(); checkGateway(t, "http://"+listen) },
		},
		{
			name: "tap", args: []string{"-listen", listen, "-tap", watch}, output: []string{"tapctl top " + watch},
			check: func(t *testing.T) { t.Helper(); checkTap(t, watch, "/hello", "/missing") },
		},
		{
			name: "proxy", args: []string{"-listen", listen, "-tap", watch}, output: []string{"curl -x http://" + listen},
			check: func(t *testing.T) { t.Helper(); checkProxy(t, listen, watch) },
		},
	}
	dir := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", dir+string(filepath.Separator), "./...")
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))

	programs, err := filepath.Glob("*/main.go")
	require.NoError(t, err)
	assert.Len(t, tests, len(programs), "a program without a test: %s", programs)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			run := exec.CommandContext(ctx, filepath.Join(dir, tt.name), tt.args...)
			log, err := os.Create(filepath.Join(t.TempDir(), "log"))
			require.NoError(t, err)
			defer log.Close()
			run.Stdout = log
			run.Stderr = log
			require.NoError(t, run.Start())
			if tt.check == nil {
				require.NoError(t, run.Wait(), "%s", read(t, log.Name()))
			} else {
				defer run.Wait()
				defer cancel()
				tt.check(t)
			}
			for _, part := range tt.output {
				require.Eventually(t, func() bool { return strings.Contains(read(t, log.Name()), part) },
					patience, 10*time.Millisecond, "%q is not in the output", part)
			}
		})
	}
}

// checkGateway sends requests until the gateway rejects one by its rate limit.
func checkGateway(t *testing.T, url string) {
	t.Helper()
	require.Eventually(t, func() bool { return status(t, url+"/") == http.StatusOK }, patience, time.Second)
	require.Eventually(t, func() bool { return status(t, url+"/books/1") == http.StatusOK }, patience, time.Second)
	require.Eventually(t, func() bool { return status(t, url+"/") == http.StatusTooManyRequests }, patience, time.Millisecond)
}

// status returns the status of a GET request, or 0 if the server does not listen yet.
func status(t *testing.T, url string) int {
	t.Helper()
	rsp, err := http.Get(url)
	if err != nil {
		return 0
	}
	rsp.Body.Close()
	return rsp.StatusCode
}

// checkProxy sends HTTP requests, gRPC calls and bytes through the proxy, and watches them.
func checkProxy(t *testing.T, addr, watch string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	transport := &http.Transport{Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: addr})}
	defer transport.CloseIdleConnections()
	bodies := make(map[string]bool)
	require.Eventually(t, func() bool {
		rsp, err := (&http.Client{Transport: transport}).Get("http://web.example/hello")
		if err != nil {
			return false
		}
		defer rsp.Body.Close()
		text, err := io.ReadAll(rsp.Body)
		bodies[string(text)] = err == nil
		return bodies["web-0 /hello\n"] && bodies["web-1 /hello\n"]
	}, patience, time.Millisecond, "both replicas answer")

	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("grpc.example"))
	require.NoError(t, err)
	defer conn.Close()
	health := grpc_health_v1.NewHealthClient(conn)
	rsp, err := health.Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	require.NoError(t, err)
	assert.Equal(t, grpc_health_v1.HealthCheckResponse_SERVING, rsp.GetStatus())

	opaque, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	require.NoError(t, err)
	defer opaque.Close()
	deadline, _ := ctx.Deadline()
	require.NoError(t, opaque.SetDeadline(deadline))
	const line = "neither HTTP nor TLS\n"
	_, err = io.WriteString(opaque, line)
	require.NoError(t, err)
	echoed := make([]byte, len(line))
	_, err = io.ReadFull(opaque, echoed)
	require.NoError(t, err)
	assert.Equal(t, line, string(echoed))

	var sending sync.WaitGroup
	defer sending.Wait()
	defer cancel()
	sending.Go(func() { // a watch does not show earlier requests
		for ctx.Err() == nil {
			_, _ = health.Check(ctx, &grpc_health_v1.HealthCheckRequest{})
			time.Sleep(10 * time.Millisecond)
		}
	})
	checkTap(t, watch, grpc_health_v1.Health_Check_FullMethodName)
}

// checkTap watches until a request of each path has been seen.
func checkTap(t *testing.T, addr string, paths ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	every := &tappb.TopRequest{Every: durationpb.New(100 * time.Millisecond)}
	for top, err := range tap.Top(ctx, conn, every, grpc.WaitForReady(true)) {
		require.NoError(t, err)
		for _, row := range top.GetRows() {
			paths = slices.DeleteFunc(paths, func(path string) bool { return path == row.GetPath() })
		}
		if len(paths) == 0 {
			return
		}
	}
	require.Fail(t, "the watch has ended", "without %v", paths)
}

// TestSmall checks that a main.go is short, and that its README names its command.
func TestSmall(t *testing.T) {
	programs, err := filepath.Glob("*/main.go")
	require.NoError(t, err)
	for _, file := range programs {
		name := filepath.Dir(file)
		limit := 40
		if name == "proxy" {
			limit = 120
		}
		assert.LessOrEqual(t, strings.Count(read(t, file), "\n"), limit, file)
		assert.Contains(t, read(t, filepath.Join(name, "README.md")), fmt.Sprintf("go run ./examples/hello/%s\n", name))
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(text)
}
