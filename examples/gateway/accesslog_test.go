package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// respondConfig is a gateway that responds by itself and logs to stdout.
const respondConfig = `
listeners: [{name: http, address: "127.0.0.1:0"}]
admin: {address: "127.0.0.1:0", tap: "off"}
routes: [{name: all, directResponse: {status: 200, body: ok}}]
`

// addressesIn reads the addresses that a gateway prints at its start.
func addressesIn(t *testing.T, stdout io.Reader) map[string]string {
	t.Helper()
	addresses := make(map[string]string)
	for lines := bufio.NewScanner(stdout); addresses["admin"] == ""; {
		require.True(t, lines.Scan())
		name, address, _ := strings.Cut(lines.Text(), ": ")
		addresses[name] = strings.Trim(strings.TrimPrefix(address, "http://"), "/")
	}
	return addresses
}

// fetch sends n requests with log lines of several KiB, and returns the last body.
func fetch(t *testing.T, url string, n int) string {
	t.Helper()
	client := &http.Client{Timeout: time.Minute, Transport: new(http.Transport)}
	defer client.CloseIdleConnections()
	var body []byte
	for range n {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
		require.NoError(t, err)
		req.Header.Set("User-Agent", strings.Repeat("x", 8<<10))
		rsp, err := client.Do(req)
		require.NoError(t, err)
		body, err = io.ReadAll(rsp.Body)
		require.NoError(t, err)
		_ = rsp.Body.Close()
		require.Equal(t, http.StatusOK, rsp.StatusCode)
	}
	return string(body)
}

// All lines have the address of the connection with the port, and that of the client without it: requests
// through a trusted proxy, refused ones, which have no proxy for the gateway, and connections of TCP routes.
func TestClientsInLog(t *testing.T) {
	p := start(t, `
listeners:
- {name: http, address: "127.0.0.1:0", trustedProxies: [127.0.0.0/8]}
- {name: tcp, address: "127.0.0.1:0", protocol: TCP, clientCIDRs: {deny: [127.0.0.0/8]}}
admin: {address: "127.0.0.1:0", tap: "off"}
routes: [{name: all, directResponse: {status: 200}}]
`)
	p.get(t, "GET", "/", "X-Forwarded-For: 192.0.2.1")
	p.get(t, "GET", "/")
	p.raw(t, "GET / HTTP/1.1\r\nHost: a\r\nA : b\r\n\r\n")
	p.raw(t, "CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n")
	conn, err := net.Dial("tcp", p.addresses["tcp"])
	if err == nil { // otherwise the gateway has already reset the connection
		require.NoError(t, conn.Close())
	}
	lines := func() []string { return regexp.MustCompile(`(?m)^\{.*\}\n`).FindAllString(p.log.String(), -1) }
	until(t, func() bool { return len(lines()) >= 5 })
	got := make(map[string]int)
	for _, line := range lines() {
		var entry struct {
			Status int
			Peer   string `json:"client.addr"`
			Client string `json:"client.ip"`
		}
		require.NoError(t, json.Unmarshal([]byte(line), &entry))
		assert.Regexp(t, `^127\.0\.0\.1:\d+$`, entry.Peer, line)
		got[fmt.Sprint(entry.Status, " ", entry.Client)]++
	}
	assert.Equal(t, map[string]int{"200 192.0.2.1": 1, "200 127.0.0.1": 1, "400 127.0.0.1": 1, "501 127.0.0.1": 1, "0 127.0.0.1": 1}, got)
}

// Nobody reads stdout and stderr. The gateway serves, reloads, counts the dropped lines and ends.
func TestStuckLogs(t *testing.T) {
	stdout, in, err := os.Pipe()
	require.NoError(t, err)
	defer in.Close()
	held, program := make(chan struct{}), new(syncBuffer)
	stuck := writerFunc(func(p []byte) (int, error) { <-held; return program.Write(p) })
	file := writeIn(t, t.TempDir(), respondConfig)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- run(ctx, []string{"run", file}, in, stuck) }()
	addresses := addressesIn(t, stdout)
	const requests = 400
	fetch(t, "http://"+addresses["http"]+"/", requests)
	dropped := func() int {
		got := regexp.MustCompile(`(?m)^log_dropped_lines_total\{log="access"\} (\d+)$`).
			FindStringSubmatch(fetch(t, "http://"+addresses["admin"]+"/metrics", 1))
		require.NotNil(t, got)
		n, err := strconv.Atoi(got[1])
		require.NoError(t, err)
		return n
	}
	lost := dropped()
	assert.Positive(t, lost)

	other := strings.Replace(respondConfig, "admin:", "accessLog: {path: "+file+".log}\nadmin:", 1)
	require.NoError(t, os.WriteFile(file, []byte(other), 0o600))
	until(t, func() bool {
		fetch(t, "http://"+addresses["http"]+"/", 1)
		written, err := os.ReadFile(file + ".log")
		return err == nil && strings.Contains(string(written), "GET")
	})
	close(held)
	stop()
	require.NoError(t, <-done)
	assert.Contains(t, program.String(), `msg="log lines are dropped" log=access err="the output is stuck or too slow"`)
	require.NoError(t, stdout.Close()) // ends the Write in progress
}

// A named pipe without a reader as the access log delays neither the start nor a reload. A reader gets
// the lines that the pipe holds.
func TestNamedPipeAsLog(t *testing.T) {
	dir := t.TempDir()
	pipe := func(name string) (path, text string) {
		path = filepath.Join(dir, name)
		require.NoError(t, exec.CommandContext(t.Context(), "mkfifo", path).Run())
		return path, strings.Replace(respondConfig, "admin:", "accessLog: {path: "+path+"}\nadmin:", 1)
	}
	_, config := pipe("first")
	p := startFile(t, writeIn(t, dir, config))
	fetch(t, "http://"+p.addresses["http"]+"/", 400)
	second, config := pipe("second")
	p.replace(t, config)
	until(t, func() bool {
		fetch(t, "http://"+p.addresses["http"]+"/", 1)
		reader, err := os.OpenFile(second, os.O_RDONLY|syscall.O_NONBLOCK, 0)
		require.NoError(t, err)
		defer reader.Close()
		line, _ := bufio.NewReader(reader).ReadString('\n')
		return strings.Contains(line, "GET")
	})
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// The reader of stdout and stderr ends. The gateway continues until it gets SIGTERM.
func TestReaderOfLogsGone(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), os.Args[0], "run", writeIn(t, t.TempDir(), respondConfig))
	cmd.Env = append(os.Environ(), asGateway+"=1")
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	stderr, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	addresses := addressesIn(t, stdout)
	require.NoError(t, stdout.Close())
	require.NoError(t, stderr.Close())
	fetch(t, "http://"+addresses["http"]+"/", 20)
	until(t, func() bool {
		return strings.Contains(fetch(t, "http://"+addresses["admin"]+"/metrics", 1), "log_dropped_lines_total{log=\"access\"} 20\n")
	})
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, cmd.Wait())
}

// The formats of lines are those of Apache, and JSON with the fields of the configuration.
func TestAccessLogFormats(t *testing.T) {
	t.Parallel()
	for format, want := range map[string]string{
		"format: common":               `(?m)^127\.0\.0\.1 - - \[\d\d/\w{3}/\d{4}(:\d\d){3} [-+]\d{4}\] "GET /a\?b=c HTTP/1\.1" 200 2$`,
		"format: combined":             `(?m)^127\.0\.0\.1 - - \[.{26}\] "GET /a\?b=c HTTP/1\.1" 200 2 "https://a\.example/" "test"$`,
		"fields: [uri, status, route]": `(?m)^\{"route":"all","status":200,"uri":"http://127\.0\.0\.1:\d+/a\?b=c"\}$`,
	} {
		p := start(t, strings.Replace(respondConfig, "admin:", "accessLog: {"+format+"}\nadmin:", 1))
		p.get(t, "GET", "/a?b=c", "Referer: https://a.example/", "User-Agent: test")
		until(t, func() bool { return regexp.MustCompile(want).MatchString(p.log.String()) })
	}
}
