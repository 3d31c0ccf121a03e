package kit_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-kit/kit/sd"
	"github.com/go-kit/kit/sd/etcdv3"
	"github.com/go-kit/kit/sd/zk"
	"github.com/go-kit/log"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/freeport"
)

// path is the service to which all instances belong.
const path = "/services/web"

// A registry is a real server with go-kit's clients for it.
type registry struct {
	*process
	restarts  bool // it can be restarted; ZooKeeper 3.8.0 never answers on connections that it accepts too early
	instancer func() (sd.Instancer, error)
	register  func(t *testing.T, instance string) (deregister func())
}

// process is a program that can be killed and started again.
type process struct {
	program string
	args    []string
	ready   string // what it prints when it serves
	running *exec.Cmd
}

// start starts p and waits until it serves.
func (p *process) start(t *testing.T) {
	t.Helper()
	p.running = exec.Command(p.program, p.args...) //nolint:gosec,noctx // killed by kill
	out, err := p.running.StderrPipe()
	require.NoError(t, err)
	p.running.Stdout = p.running.Stderr
	require.NoError(t, p.running.Start())
	ready := make(chan struct{})
	go func() {
		isReady := false
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if !isReady && strings.Contains(lines.Text(), p.ready) {
				isReady = true
				close(ready)
			}
		}
	}()
	select {
	case <-ready:
	case <-time.After(2 * time.Minute):
		require.Fail(t, "not ready", "%s", p.program)
	}
}

// kill ends p without a shutdown. Its data is kept.
func (p *process) kill(t *testing.T) {
	t.Helper()
	require.NoError(t, p.running.Process.Kill())
	_ = p.running.Wait()
}

// need skips the test if a file is missing.
func need(t *testing.T, file string) {
	t.Helper()
	if os.Getenv("GOTOWER_TESTS") != "full" {
		t.Skip("it needs a registry: set GOTOWER_TESTS=full")
	}
	if _, err := os.Stat(file); err != nil {
		t.Skip("run .ci/registries.sh: ", err)
	}
}

func newEtcd(t *testing.T) registry {
	t.Helper()
	dir := os.Getenv("GOTOWER_KUBE")
	if dir == "" {
		cache, err := os.UserCacheDir()
		require.NoError(t, err)
		dir = filepath.Join(cache, "gotower-kube")
	}
	program := filepath.Join(dir, "etcd")
	need(t, program)
	addr, peers := freeport.Addr(t), "http://"+freeport.Addr(t)
	p := &process{program: program, ready: "ready to serve client requests", args: []string{
		"--data-dir", filepath.Join(t.TempDir(), "etcd"), "--listen-client-urls", "http://" + addr, "--advertise-client-urls", "http://" + addr,
		"--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", "default=" + peers,
	}}
	connect := func() (etcdv3.Client, error) {
		return etcdv3.NewClient(t.Context(), []string{addr}, etcdv3.ClientOptions{})
	}
	return registry{
		process:  p,
		restarts: true,
		instancer: func() (sd.Instancer, error) {
			c, err := connect()
			if err != nil {
				return nil, err
			}
			return etcdv3.NewInstancer(c, path, log.NewNopLogger())
		},
		register: func(t *testing.T, instance string) func() {
			t.Helper()
			c, err := connect()
			require.NoError(t, err)
			service := etcdv3.Service{Key: path + "/" + instance, Value: instance}
			require.NoError(t, c.Register(service))
			return func() { require.NoError(t, c.Deregister(service)) }
		},
	}
}

func newZooKeeper(t *testing.T) registry {
	t.Helper()
	const jar = "/usr/share/java/zookeeper.jar"
	need(t, jar)
	addr, dir := freeport.Addr(t), t.TempDir()
	host, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	config := filepath.Join(dir, "zoo.cfg")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil,
		"dataDir=%s\nclientPort=%s\nclientPortAddress=%s\ntickTime=2000\nadmin.enableServer=false\n", dir, port, host), 0o600))
	p := &process{program: "java", ready: "ZooKeeper audit is disabled", args: []string{
		"-Xmx64m", "-XX:TieredStopAtLevel=1", "-cp", jar + ":/usr/share/java/slf4j-simple.jar", "org.apache.zookeeper.server.ZooKeeperServerMain", config,
	}}
	connect := func() (zk.Client, error) {
		return zk.NewClient([]string{addr}, log.NewNopLogger(), zk.SessionTimeout(40*time.Second))
	}
	return registry{
		process: p,
		instancer: func() (sd.Instancer, error) {
			c, err := connect()
			if err != nil {
				return nil, err
			}
			context.AfterFunc(t.Context(), c.Stop)
			return zk.NewInstancer(c, path, log.NewNopLogger())
		},
		register: func(t *testing.T, instance string) func() {
			t.Helper()
			c, err := connect()
			require.NoError(t, err)
			service := &zk.Service{Path: filepath.Dir(path), Name: filepath.Base(path), Data: []byte(instance)}
			require.NoError(t, c.Register(service))
			return c.Stop // ends the session; go-kit's Deregister fails, because it deletes the node's parent
		},
	}
}
