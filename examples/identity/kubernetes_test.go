package main

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/identity"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	authn "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/gotower/gotower/examples/identity/ca"
	"github.com/gotower/gotower/examples/identity/kube"
	"github.com/gotower/gotower/internal/kubetest"
	"github.com/gotower/gotower/layer/tcplayer/identity"
)

const authorityName = "linkerd-identity.linkerd.serviceaccount.identity.linkerd.cluster.local"

// output is what the program prints, for several goroutines.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// accounts creates ServiceAccounts and their tokens.
type accounts struct {
	kubernetes.Interface

	server *kubetest.Server
	all    []string // all tokens so far
}

func (a *accounts) create(t *testing.T, namespace, name string) {
	t.Helper()
	_, err := a.CoreV1().ServiceAccounts(namespace).Create(t.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	require.NoError(t, err)
}

// token returns a token of the API server for a ServiceAccount, as kubelet projects it.
func (a *accounts) token(t *testing.T, namespace, name string, audience ...string) string {
	t.Helper()
	r, err := a.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), name,
		&authn.TokenRequest{Spec: authn.TokenRequestSpec{Audiences: audience}}, metav1.CreateOptions{})
	require.NoError(t, err)
	a.all = append(a.all, r.Status.Token)
	return r.Status.Token
}

// signed returns a token that the key of the API server signs. It expires after the duration
// life, because the API server issues none for less than ten minutes.
func (a *accounts) signed(t *testing.T, namespace, name string, life time.Duration) string {
	t.Helper()
	account, err := a.CoreV1().ServiceAccounts(namespace).Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	encode := func(v any) string {
		text, err := json.Marshal(v)
		require.NoError(t, err)
		return base64.RawURLEncoding.EncodeToString(text)
	}
	now := time.Now()
	text := encode(map[string]string{"alg": "RS256"}) + "." + encode(map[string]any{
		"iss": "https://kubernetes.default.svc", "sub": "system:serviceaccount:" + namespace + ":" + name, "aud": []string{kube.Audience},
		"iat": now.Add(-time.Hour).Unix(), "nbf": now.Add(-time.Hour).Unix(), "exp": now.Add(life).Unix(),
		"kubernetes.io": map[string]any{"namespace": namespace, "serviceaccount": map[string]any{"name": name, "uid": account.UID}},
	})
	sum := sha256.Sum256([]byte(text))
	signature, err := rsa.SignPKCS1v15(rand.Reader, a.server.Key, crypto.SHA256, sum[:])
	require.NoError(t, err)
	text += "." + base64.RawURLEncoding.EncodeToString(signature)
	a.all = append(a.all, text)
	return text
}

// newIssuer writes the files of a new issuer to dir and returns its trust anchors.
func newIssuer(t *testing.T, dir string) string {
	t.Helper()
	made := t.TempDir()
	_, err := ca.Open(filepath.Join(made, "ca"), "cluster.local")
	require.NoError(t, err)
	for from, to := range map[string]string{"issuer.pem": kube.CertFile, "issuer.key": kube.KeyFile} {
		require.NoError(t, os.Rename(filepath.Join(made, "ca", from), filepath.Join(dir, to)))
	}
	anchors, err := os.ReadFile(filepath.Join(made, "ca", ca.AnchorsFile))
	require.NoError(t, err)
	return string(anchors)
}

// client is a client of the identity API that trusts the anchors.
func client(t *testing.T, addr, anchors string) (pb.IdentityClient, *grpc.ClientConn) {
	t.Helper()
	key, csr, err := identity.Request(web)
	require.NoError(t, err)
	i, err := identity.New(identity.Config{
		Name: web, Roots: []byte(anchors), Key: key, CSR: csr, Token: func() ([]byte, error) { return nil, io.EOF },
	})
	require.NoError(t, err)
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(credentials.NewTLS(i.Bootstrap("", authorityName))))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return pb.NewIdentityClient(conn), conn
}

// The authority certifies ServiceAccounts of a real API server, with the rights of rbac.yaml.
func TestRealAPIServer(t *testing.T) {
	if os.Getenv("GOTOWER_TESTS") != "full" {
		t.Skip("it takes a minute: GOTOWER_TESTS=full")
	}
	server := kubetest.New(t)
	server.Apply(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: linkerd}\n---\n"+kube.RBAC("linkerd"))
	all := &accounts{Interface: server.Client(t, kubetest.Admin), server: server}
	for _, name := range []string{"web", "db", "gone"} {
		all.create(t, "default", name)
	}
	dir := t.TempDir()
	anchors := newIssuer(t, dir)
	maps := all.CoreV1().ConfigMaps("linkerd")
	bundle := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: kube.AnchorsConfigMap}, Data: map[string]string{kube.AnchorsKey: anchors}}
	_, err := maps.Create(t.Context(), bundle, metav1.CreateOptions{})
	require.NoError(t, err)

	ctx, cancel := context.WithCancel(t.Context())
	var stdout, stderr output
	ended := make(chan error, 1)
	kubeconfig := server.Kubeconfig(t, all.token(t, "linkerd", "linkerd-identity"), "")
	go func() {
		args := []string{"-kubernetes", "-kubeconfig", kubeconfig, "-dir", dir, "-name", authorityName, "-listen", "127.0.0.1:0"}
		ended <- run(ctx, args, &stdout, &stderr)
	}()
	listening := regexp.MustCompile(`certifying names of cluster\.local on (127\.0\.0\.1:\d+); trust anchors are of the ConfigMap`)
	require.Eventually(t, func() bool { return listening.MatchString(stdout.String()) }, time.Minute, 10*time.Millisecond)
	addr := listening.FindStringSubmatch(stdout.String())[1]

	to, conn := client(t, addr, anchors)
	_, csr, err := identity.Request(web)
	require.NoError(t, err)
	var errs strings.Builder
	certify := func(token string) (*pb.CertifyResponse, error) {
		rsp, err := to.Certify(t.Context(), &pb.CertifyRequest{Identity: web, Token: []byte(token), CertificateSigningRequest: csr})
		if err != nil {
			errs.WriteString(err.Error())
		}
		return rsp, err
	}
	gone := all.token(t, "default", "gone", kube.Audience)
	require.NoError(t, all.CoreV1().ServiceAccounts("default").Delete(t.Context(), "gone", metav1.DeleteOptions{}))
	right := all.token(t, "default", "web", kube.Audience)
	for _, tt := range []struct {
		token string
		code  codes.Code
		want  string
	}{
		{right, codes.OK, ""},
		{all.token(t, "default", "web", "other", kube.Audience), codes.OK, ""},
		{all.signed(t, "default", "web", time.Hour), codes.OK, ""},
		{"", codes.InvalidArgument, "must have a token"},
		{"x.y.z", codes.InvalidArgument, "the token is invalid"},
		{right[:len(right)-10] + "AAAAAAAAAA", codes.InvalidArgument, "the token is invalid"},
		{all.token(t, "default", "db", kube.Audience), codes.FailedPrecondition, `the token is of "db.default.serviceaccount`},
		{all.token(t, "default", "web"), codes.InvalidArgument, "audience"},
		{all.token(t, "default", "web", "other"), codes.InvalidArgument, "audience"},
		{all.signed(t, "default", "web", -time.Minute), codes.InvalidArgument, "expired"},
		{gone, codes.InvalidArgument, "the token is invalid"},
		{kubetest.Admin, codes.InvalidArgument, "the token is invalid"},
	} {
		rsp, err := certify(tt.token)
		require.Equal(t, tt.code, status.Code(err), "%v", err)
		if tt.code != codes.OK {
			require.ErrorContains(t, err, tt.want)
			require.Nil(t, rsp)
			continue
		}
		leaf, err := x509.ParseCertificate(rsp.GetLeafCertificate())
		require.NoError(t, err)
		require.Equal(t, []string{web}, leaf.DNSNames)
	}

	// The proxy reads the file of its token before each request.
	proxy, file := t.TempDir(), filepath.Join(t.TempDir(), "token")
	write := func(token string) { require.NoError(t, os.WriteFile(file, []byte(token), 0o600)) }
	write(all.token(t, "default", "db", kube.Audience))
	require.NoError(t, identity.Generate(proxy, web))
	config, err := identity.Load(proxy, anchors, file, web, "")
	require.NoError(t, err)
	config.MinRefresh, config.MaxRefresh = 100*time.Millisecond, 100*time.Millisecond
	i, err := identity.New(config)
	require.NoError(t, err)
	running, stop := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() { stopped <- i.Run(running, conn) }()
	untilError := func(want string) {
		t.Helper()
		require.Eventually(t, func() bool {
			text := i.Describe().String()
			return want != "" && strings.Contains(text, want) || want == "" && !strings.Contains(text, "error")
		}, time.Minute, 10*time.Millisecond, "%s", want)
	}
	untilError("the token is of")
	write(all.token(t, "default", "web", kube.Audience))
	require.NoError(t, i.Ready(t.Context()))
	write(all.token(t, "default", "db", kube.Audience))
	untilError("the token is of")
	write(all.token(t, "default", "web", kube.Audience))
	untilError("")

	// Requests fail with Unavailable while the API server is away, and the proxy retries.
	server.Kill(t)
	_, err = certify(right)
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	untilError("the API server does not review tokens now")
	server.Start(t)
	untilError("")
	stop()
	require.NoError(t, <-stopped)

	// A further trust anchor, and then an issuer below it, replace the old ones.
	issuer := t.TempDir()
	more := newIssuer(t, issuer)
	bundle.Data[kube.AnchorsKey] = anchors + more
	_, err = maps.Update(t.Context(), bundle, metav1.UpdateOptions{})
	require.NoError(t, err)
	for _, name := range []string{kube.CertFile, kube.KeyFile} {
		require.NoError(t, os.Rename(filepath.Join(issuer, name), filepath.Join(dir, name)))
	}
	_, renewed := client(t, addr, more)
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM([]byte(more)))
	require.Eventually(t, func() bool {
		rsp, err := pb.NewIdentityClient(renewed).Certify(t.Context(), &pb.CertifyRequest{Identity: web, Token: []byte(right), CertificateSigningRequest: csr})
		if err != nil {
			return false
		}
		others := x509.NewCertPool()
		for _, der := range rsp.GetIntermediateCertificates() {
			c, err := x509.ParseCertificate(der)
			require.NoError(t, err)
			others.AddCert(c)
		}
		leaf, err := x509.ParseCertificate(rsp.GetLeafCertificate())
		require.NoError(t, err)
		_, err = leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: others})
		return err == nil
	}, time.Minute, 100*time.Millisecond)

	require.NoError(t, conn.Close())
	require.NoError(t, renewed.Close())
	cancel()
	require.NoError(t, <-ended)
	keyFile, err := os.ReadFile(filepath.Join(dir, kube.KeyFile))
	require.NoError(t, err)
	printed := stdout.String() + stderr.String() + errs.String() + i.Describe().String()
	for _, token := range all.all {
		for part := range strings.SplitSeq(token, ".") {
			require.NotContains(t, printed, part)
		}
	}
	require.NotContains(t, printed, strings.Split(string(keyFile), "\n")[1])
	require.NotContains(t, printed, kubetest.Admin)
	require.Contains(t, printed, "the API server did not review a token")
}
