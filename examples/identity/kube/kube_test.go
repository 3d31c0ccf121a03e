package kube_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	authn "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gotower/gotower/examples/identity/kube"
)

const (
	web   = "web.default.serviceaccount.identity.linkerd.cluster.local"
	token = "headerheader.payloadpayload.signaturesignature"
)

// review returns the answer of the API server for a token of the given user.
func review(user string, audiences ...string) authn.TokenReviewStatus {
	return authn.TokenReviewStatus{Authenticated: true, User: authn.UserInfo{Username: user}, Audiences: audiences}
}

func TestReviewer(t *testing.T) {
	const webUser = "system:serviceaccount:default:web"
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "tokenreviews"}, "", errors.New("for "+token))
	for _, tt := range []struct {
		name   string
		answer authn.TokenReviewStatus
		err    error
		code   codes.Code
		want   string
	}{
		{web, review(webUser, kube.Audience), nil, codes.OK, ""},
		{web, review(webUser, "other", kube.Audience), nil, codes.OK, ""},
		{web, review(webUser), nil, codes.FailedPrecondition, "must be for identity.l5d.io"},
		{web, review(webUser, "https://kubernetes.default.svc"), nil, codes.FailedPrecondition, "must be for identity.l5d.io"},
		{web, review("system:serviceaccount:default:db", kube.Audience), nil, codes.FailedPrecondition, `the token is of "db.default.`},
		{web, review("system:serviceaccount:prod:web", kube.Audience), nil, codes.FailedPrecondition, `the token is of "web.prod.`},
		{web, review("admin", kube.Audience), nil, codes.FailedPrecondition, `the token is of the user "admin"`},
		{web, review("system:node:default:web", kube.Audience), nil, codes.FailedPrecondition, "must be of a service account"},
		{web, review("system:serviceaccount:default:", kube.Audience), nil, codes.FailedPrecondition, "must be of a service account"},
		{web, review("system:serviceaccount:default:web.a", kube.Audience), nil, codes.FailedPrecondition, "must be of a service account"},
		{web, authn.TokenReviewStatus{}, nil, codes.FailedPrecondition, "the token is not authenticated"},
		{web, authn.TokenReviewStatus{Error: "no " + token + " and payloadpayload"}, nil, codes.InvalidArgument, "no [redacted] and [redacted]"},
		{web, authn.TokenReviewStatus{}, forbidden, codes.Internal, "the authority may not review tokens"},
		{web, authn.TokenReviewStatus{}, apierrors.NewServiceUnavailable(token), codes.Unavailable, "the API server does not review"},
		{web, authn.TokenReviewStatus{}, errors.New("dial: refused " + token), codes.Unavailable, "the API server does not review"},
		{"web.default.serviceaccount.identity.linkerd.example.org", review(webUser, kube.Audience), nil, codes.FailedPrecondition, "must be SERVICEACCOUNT.NAMESPACE.serv"},
		{"web." + web, review(webUser, kube.Audience), nil, codes.FailedPrecondition, "must be SERVICEACCOUNT.NAMESPACE.serv"},
		{"cluster.local", review(webUser, kube.Audience), nil, codes.FailedPrecondition, "must be SERVICEACCOUNT.NAMESPACE.serv"},
	} {
		client := fake.NewClientset()
		client.PrependReactor("create", "tokenreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
			asked := a.(clienttesting.CreateAction).GetObject().(*authn.TokenReview)
			require.Equal(t, authn.TokenReviewSpec{Token: token, Audiences: []string{kube.Audience}}, asked.Spec)
			asked.Status = tt.answer
			return true, asked, tt.err
		})
		var log bytes.Buffer
		r := kube.NewReviewer(client, "linkerd", "cluster.local", slog.New(slog.NewTextHandler(&log, nil)))
		err := r.Check(t.Context(), tt.name, []byte(token))
		require.Equal(t, tt.code, status.Code(err), "%v", err)
		if tt.want != "" {
			require.ErrorContains(t, err, tt.want)
			for part := range strings.SplitSeq(token, ".") {
				require.NotContains(t, err.Error()+log.String(), part)
			}
		}
		require.Equal(t, tt.err != nil, log.Len() > 0, "errors of the API server are logged")
	}
}

// apiServer answers each request when it is closed.
type apiServer chan struct{}

func (s apiServer) RoundTrip(r *http.Request) (*http.Response, error) {
	select {
	case <-s:
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	return &http.Response{
		StatusCode: http.StatusOK, Request: r, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(strings.NewReader(`{"kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1"}`)),
	}, nil
}

// The number of concurrent requests to the API server is limited.
func TestReviewerLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := make(apiServer)
		client, err := kubernetes.NewForConfigAndClient(&rest.Config{QPS: -1}, &http.Client{Transport: server})
		require.NoError(t, err)
		r := kube.NewReviewer(client, "linkerd", "cluster.local", slog.New(slog.DiscardHandler))
		check := func() codes.Code { return status.Code(r.Check(t.Context(), web, []byte(token))) }
		var running sync.WaitGroup
		for range 32 {
			running.Go(func() { assert.Equal(t, codes.FailedPrecondition, check()) })
		}
		synctest.Wait()
		start := time.Now()
		require.Equal(t, codes.ResourceExhausted, check())
		require.Equal(t, 2*time.Second, time.Since(start))
		close(server)
		running.Wait()
		require.Equal(t, codes.FailedPrecondition, check(), "there is room again")
	})
}

// A Source provides the first content and each change. Invalid content is logged once.
func TestSource(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) {
		t.Helper()
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	write(kube.CertFile, "cert 1")
	write(kube.KeyFile, "key 1")
	client := fake.NewClientset()
	watching := make(chan struct{}, 10)
	client.PrependWatchReactor("configmaps", func(a clienttesting.Action) (bool, watch.Interface, error) {
		w, err := client.Tracker().Watch(a.GetResource(), a.GetNamespace())
		watching <- struct{}{}
		return true, w, err
	})
	var log lines
	got := make(chan string, 100)
	source := kube.Source{
		Client: client, Namespace: "linkerd", Dir: dir, Log: slog.New(slog.NewTextHandler(&log, nil)),
		Replace: func(anchors, cert, key []byte) error {
			got <- string(anchors) + ", " + string(cert) + ", " + string(key)
			if string(anchors) == "bad" {
				return errors.New("bad anchors")
			}
			return nil
		},
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); source.Run(ctx) }()
	<-watching // the fake client loses changes between a list and a watch
	maps := client.CoreV1().ConfigMaps("linkerd")
	bundle := func(pem string) *corev1.ConfigMap {
		return &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: kube.AnchorsConfigMap, Namespace: "linkerd"}, Data: map[string]string{kube.AnchorsKey: pem},
		}
	}
	_, err := maps.Create(t.Context(), bundle("one"), metav1.CreateOptions{})
	require.NoError(t, err)
	require.Equal(t, "one, cert 1, key 1", <-got)
	for _, pem := range []string{"two", "bad"} {
		write(kube.CertFile, "cert 2")
		_, err = maps.Update(t.Context(), bundle(pem), metav1.UpdateOptions{})
		require.NoError(t, err)
		require.Equal(t, pem+", cert 2, key 1", <-got)
	}
	require.Eventually(t, func() bool { return strings.Contains(log.String(), "bad anchors") }, time.Minute, time.Millisecond)
	require.NoError(t, maps.Delete(t.Context(), kube.AnchorsConfigMap, metav1.DeleteOptions{}))
	require.NoError(t, os.Remove(filepath.Join(dir, kube.KeyFile)))
	_, err = maps.Create(t.Context(), bundle("three"), metav1.CreateOptions{})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return strings.Contains(log.String(), "no such file") }, time.Minute, time.Millisecond)
	cancel()
	<-done
	require.NotContains(t, log.String(), "key 1")
}

// A Source tries content again, because a certificate may not be valid yet.
func TestSourceNotYetValid(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{kube.CertFile, kube.KeyFile} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(name), 0o600))
	}
	synctest.Test(t, func(t *testing.T) {
		start, calls := time.Now(), 0
		var log lines
		source := kube.Source{
			Client: fake.NewClientset(&corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Name: kube.AnchorsConfigMap, Namespace: "linkerd"}, Data: map[string]string{kube.AnchorsKey: "one"},
			}),
			Namespace: "linkerd", Dir: dir, Log: slog.New(slog.NewTextHandler(&log, nil)),
			Replace: func(_, _, _ []byte) error {
				if calls++; time.Since(start) < 12*time.Second {
					return errors.New("not yet valid at " + time.Now().String())
				}
				return nil
			},
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		source.Run(ctx)
		require.Equal(t, 4, calls, log.String())
		require.Equal(t, 1, strings.Count(log.String(), "not yet valid"))
	})
}

// lines is a log of several goroutines.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestRBAC(t *testing.T) {
	require.Equal(t, 5, strings.Count(kube.RBAC("mesh"), "namespace: mesh}"))
	require.NotContains(t, kube.RBAC("mesh"), "namespace: linkerd}")
	require.Equal(t, 5, strings.Count(kube.RBAC(kube.Namespace), "namespace: linkerd}"))
}
