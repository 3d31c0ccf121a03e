package k8s

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/gotower/gotower/internal/freeport"
)

// programs returns the directory in which .ci/kube.sh builds, or skips the test.
func programs(t *testing.T) string {
	dir := os.Getenv("GOTOWER_KUBE")
	if dir == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			t.Skip("there is no directory for caches: set GOTOWER_KUBE to where .ci/kube.sh left its programs")
		}
		dir = filepath.Join(cache, "gotower-kube")
	}
	for _, name := range []string{"etcd", "kube-apiserver"} {
		if _, err := os.Stat(filepath.Join(dir, name)); errors.Is(err, fs.ErrNotExist) {
			t.Skipf("no %s in %s: run .ci/kube.sh, which builds it", name, dir)
		}
	}
	return dir
}

// apiServer is a kube-apiserver with an etcd, on addresses of its own.
type apiServer struct {
	program, dir string
	etcd, port   string
	running      *exec.Cmd
}

const (
	adminToken = "of-admin"
	guestToken = "of-guest"
)

// startAPIServer starts both and waits until they are ready.
func startAPIServer(t *testing.T) *apiServer {
	programs, dir := programs(t), t.TempDir()
	s := &apiServer{program: filepath.Join(programs, "kube-apiserver"), dir: dir, port: freePort(t)}
	clients, peers := "http://127.0.0.1:"+freePort(t), "http://127.0.0.1:"+freePort(t)
	s.etcd = clients
	start(t, dir, filepath.Join(programs, "etcd"), "--data-dir", filepath.Join(dir, "etcd"), "--unsafe-no-fsync",
		"--listen-client-urls", clients, "--advertise-client-urls", clients,
		"--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", "default="+peers)
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	s.write(t, "key", string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})))
	s.write(t, "tokens", adminToken+",admin,1,system:masters\n"+guestToken+",guest,2\n")
	s.start(t)
	return s
}

func (s *apiServer) write(t *testing.T, name, content string) {
	require.NoError(t, os.WriteFile(filepath.Join(s.dir, name), []byte(content), 0o600))
}

func (s *apiServer) start(t *testing.T) {
	file := func(name string) string { return filepath.Join(s.dir, name) }
	s.running = start(t, s.dir, s.program, "--etcd-servers", s.etcd, "--cert-dir", file("certificates"),
		"--bind-address", "127.0.0.1", "--secure-port", s.port, "--advertise-address", "10.9.8.7",
		"--service-cluster-ip-range", "10.96.0.0/16", "--authorization-mode", "RBAC",
		"--token-auth-file", file("tokens"), "--service-account-issuer", "https://kubernetes.default.svc",
		"--service-account-key-file", file("key"), "--service-account-signing-key-file", file("key"),
		"--disable-admission-plugins", "ServiceAccount")
	admin := s.client(t, adminToken)
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		answer, err := admin.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		return err == nil && string(answer) == "ok"
	}, time.Minute, 50*time.Millisecond, "kube-apiserver is not ready")
}

// kill kills the API server without a shutdown.
func (s *apiServer) kill(t *testing.T) {
	require.NoError(t, s.running.Process.Kill())
	_ = s.running.Wait()
}

// client has connections of its own, which end with the test.
func (s *apiServer) client(t *testing.T, token string) kubernetes.Interface {
	config := &rest.Config{
		Host: "https://127.0.0.1:" + s.port, BearerToken: token, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{Insecure: true},
	}
	http, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	t.Cleanup(http.CloseIdleConnections)
	client, err := kubernetes.NewForConfigAndClient(config, http)
	require.NoError(t, err)
	return client
}

// start runs a program until the test ends, and prints its last output if the test
// failed.
func start(t *testing.T, dir, program string, args ...string) *exec.Cmd {
	cmd := exec.Command(program, args...)
	cmd.Dir = dir
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			lines := strings.Split(output.String(), "\n")
			t.Log(filepath.Base(program), strings.Join(lines[max(0, len(lines)-20):], "\n"))
		}
	})
	return cmd
}

func freePort(t *testing.T) string {
	_, port, err := net.SplitHostPort(freeport.Addr(t))
	require.NoError(t, err)
	return port
}
