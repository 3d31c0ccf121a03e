// Package kubetest starts a kube-apiserver with etcd for tests. The script .ci/kube.sh
// builds both programs.
package kubetest

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/yaml"

	"github.com/gotower/gotower/internal/freeport"
)

// programs returns the directory with the programs that .ci/kube.sh builds. If a program is
// missing, it skips the test.
func programs(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("GOTOWER_KUBE") //nolint:forbidigo // of a test
	if dir == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			t.Skip("missing directory for caches: set GOTOWER_KUBE to where .ci/kube.sh left its programs")
		}
		dir = filepath.Join(cache, "gotower-kube")
	}
	for _, name := range []string{"etcd", "kube-apiserver"} {
		_, err := os.Stat(filepath.Join(dir, name)) //nolint:gosec // the directory of the developer
		if errors.Is(err, fs.ErrNotExist) {
			t.Skipf("no %s in %s: run .ci/kube.sh, which builds it", name, dir)
		}
	}
	return dir
}

// Server is a kube-apiserver with its own etcd. It listens at 127.0.0.1 and the port Port.
type Server struct {
	Port string
	Key  *rsa.PrivateKey // signs the tokens of ServiceAccounts
	Etcd string          // URL of etcd

	program, dir string
	running      *process
}

// These are the bearer tokens for a Server's two users. Admin may do everything, and Guest
// nothing.
const (
	Admin = "of-admin"
	Guest = "of-guest"
)

// New starts etcd and a kube-apiserver, waits until both are ready, and kills both when the test
// ends. New skips the test unless GOTOWER_TESTS=full is set and .ci/kube.sh has built the
// programs.
func New(t *testing.T) *Server {
	t.Helper()
	if os.Getenv("GOTOWER_TESTS") != "full" { //nolint:forbidigo // of a test
		t.Skip("it takes ten seconds or more: set GOTOWER_TESTS=full")
	}
	programs := programs(t)
	dir := t.TempDir()
	s := &Server{program: filepath.Join(programs, "kube-apiserver"), dir: dir, Port: freePort(t)}
	clients := "http://127.0.0.1:" + freePort(t)
	peers := "http://127.0.0.1:" + freePort(t)
	s.Etcd = clients
	start(t, dir, filepath.Join(programs, "etcd"), "--data-dir", filepath.Join(dir, "etcd"), "--unsafe-no-fsync",
		"--listen-client-urls", clients, "--advertise-client-urls", clients,
		"--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", "default="+peers)
	var err error
	s.Key, err = rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	s.write(t, "key", string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(s.Key)})))
	s.write(t, "tokens", Admin+",admin,1,system:masters\n"+Guest+",guest,2\n")
	s.Start(t)
	return s
}

// write writes a file with the given name into the directory of the server.
func (s *Server) write(t *testing.T, name, content string) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(s.dir, name), []byte(content), 0o600))
}

// Start starts the kube-apiserver again after [Server.Kill], with the same port and etcd.
// It waits until the kube-apiserver is ready. On a busy machine a kube-apiserver may exit because it
// has not checked all Services in time. It is then started again, as a kubelet does.
func (s *Server) Start(t *testing.T) {
	t.Helper()
	s.run(t)
	admin := s.Client(t, Admin)
	deadline := time.Now().Add(10 * time.Minute)
	for !isReady(t.Context(), admin) {
		require.True(t, time.Now().Before(deadline), "kube-apiserver is not ready")
		select {
		// It has exited instead of getting ready.
		case <-s.running.ended:
			s.run(t)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// isReady reports whether the kube-apiserver says, at /readyz, that it serves requests.
func isReady(ctx context.Context, admin kubernetes.Interface) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	answer, err := admin.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
	return err == nil && string(answer) == "ok"
}

// run starts the kube-apiserver and does not wait until it is ready.
func (s *Server) run(t *testing.T) {
	t.Helper()
	file := func(name string) string { return filepath.Join(s.dir, name) }
	// The advertised address must not be a loopback one; nothing connects to it.
	s.running = start(t, s.dir, s.program, "--etcd-servers", s.Etcd, "--cert-dir", file("certificates"),
		"--bind-address", "127.0.0.1", "--secure-port", s.Port, "--advertise-address", "10.9.8.7",
		"--service-cluster-ip-range", "10.96.0.0/16", "--authorization-mode", "RBAC",
		"--token-auth-file", file("tokens"), "--service-account-issuer", "https://kubernetes.default.svc",
		"--service-account-key-file", file("key"), "--service-account-signing-key-file", file("key"),
		"--disable-admission-plugins", "ServiceAccount")
}

// Kill kills the kube-apiserver without a shutdown. etcd and its data remain.
func (s *Server) Kill(t *testing.T) {
	t.Helper()
	require.NoError(t, s.running.Process.Kill())
	<-s.running.ended
}

// Config returns the configuration of a client that authenticates with the given token,
// which is [Admin] or [Guest].
func (s *Server) Config(token string) *rest.Config {
	return &rest.Config{
		Host: "https://127.0.0.1:" + s.Port, BearerToken: token, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{Insecure: true},
	}
}

// Client returns a client that authenticates with the given token, which is [Admin] or
// [Guest]. Its connections are closed at the end of the test.
func (s *Server) Client(t *testing.T, token string) kubernetes.Interface {
	t.Helper()
	config := s.Config(token)
	http, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	t.Cleanup(http.CloseIdleConnections)
	client, err := kubernetes.NewForConfigAndClient(config, http)
	require.NoError(t, err)
	return client
}

// Kubeconfig writes the configuration for a client with the given token to a file, and returns
// its path. namespace is the client's default namespace, which may be empty.
func (s *Server) Kubeconfig(t *testing.T, token, namespace string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(path, fmt.Appendf(nil, `
apiVersion: v1
kind: Config
current-context: test
contexts: [{name: test, context: {cluster: test, user: test, namespace: "%s"}}]
clusters: [{name: test, cluster: {server: "https://127.0.0.1:%s", insecure-skip-tls-verify: true}}]
users: [{name: test, user: {token: "%s"}}]
`, namespace, s.Port, token), 0o600))
	return path
}

// Apply creates the objects of manifests, which are YAML documents.
func (s *Server) Apply(t *testing.T, manifests string) {
	t.Helper()
	config := s.Config(Admin)
	http, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	defer http.CloseIdleConnections()
	client, err := dynamic.NewForConfigAndClient(config, http)
	require.NoError(t, err)
	kinds, err := restmapper.GetAPIGroupResources(s.Client(t, Admin).Discovery())
	require.NoError(t, err)
	mapper := restmapper.NewDiscoveryRESTMapper(kinds)
	for doc := range strings.SplitSeq(manifests, "\n---\n") {
		u := new(unstructured.Unstructured)
		require.NoError(t, yaml.Unmarshal([]byte(doc), &u.Object), doc)
		kind := u.GroupVersionKind()
		m, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
		require.NoError(t, err, doc)
		_, err = client.Resource(m.Resource).Namespace(u.GetNamespace()).Create(t.Context(), u, metav1.CreateOptions{})
		require.NoError(t, err, doc)
	}
}

// process is a program that the test has started, until it is killed or exits.
type process struct {
	*exec.Cmd
	ended chan struct{} // closed when the program has exited
}

// start runs a program in dir until the test ends. If the test failed, it then logs the last 20
// lines of the program's output.
func start(t *testing.T, dir, program string, args ...string) *process {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), program, args...) //nolint:gosec // of .ci/kube.sh
	cmd.Dir = dir
	var output bytes.Buffer
	cmd.Stdout = &output
	cmd.Stderr = &output
	require.NoError(t, cmd.Start())
	p := &process{Cmd: cmd, ended: make(chan struct{})}
	go func() {
		_ = cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-p.ended
		if t.Failed() {
			lines := strings.Split(output.String(), "\n")
			t.Log(filepath.Base(program), strings.Join(lines[max(0, len(lines)-20):], "\n"))
		}
	})
	return p
}

// freePort returns a port of 127.0.0.1 at which nothing listens. Another program may take it before
// it is used.
func freePort(t *testing.T) string {
	t.Helper()
	_, port, err := net.SplitHostPort(freeport.Addr(t))
	require.NoError(t, err)
	return port
}
