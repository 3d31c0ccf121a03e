package webhook

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/gotower/gotower/examples/inject/injector"
	"github.com/gotower/gotower/examples/internal/serve"
)

// Server is the admission webhook. It answers the API server over TLS. A second listener
// serves probes and metrics in cleartext.
type Server struct {
	Client      kubernetes.Interface
	Certificate *Certificate
	Config      func() (injector.Config, error) // called for each pod, so that trust anchors can change
	Listen      string                          // address for the API server
	Admin       string                          // address of /healthz, /readyz and /metrics
	Ready       func(listen, admin string)      // if not nil, called when both listeners are open
	Log         *slog.Logger

	native    bool // the cluster has native sidecars
	responses *prometheus.CounterVec
	durations prometheus.Histogram
	metrics   *prometheus.Registry
}

// grace is how long open requests may take after the context of Run has ended.
const grace = 10 * time.Second

// Run serves until ctx ends. It listens only after it has read the version of the API
// server, which determines whether the webhook may use native sidecars.
func (s *Server) Run(ctx context.Context) error {
	if err := s.readVersion(ctx); err != nil {
		return err
	}
	s.metrics = prometheus.NewRegistry()
	s.responses = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "proxy_inject_admission_responses_total", Help: "Responses to admission requests, by result.",
	}, []string{"result"})
	s.durations = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "proxy_inject_admission_duration_seconds", Help: "Time to the response to an admission request.",
	})
	expiry := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "proxy_inject_cert_expiration_timestamp_seconds", Help: "When the certificate of the webhook expires.",
	}, func() float64 {
		cert, err := s.Certificate.Get(nil)
		if err != nil {
			return 0
		}
		return float64(cert.Leaf.NotAfter.Unix())
	})
	s.metrics.MustRegister(s.responses, s.durations, expiry)

	var group serve.Group
	secure := func(l net.Listener) net.Listener {
		return tls.NewListener(l, &tls.Config{GetCertificate: s.Certificate.Get, MinVersion: tls.VersionTLS12})
	}
	at := group.HTTPBehind(secure, "webhook", s.Listen, http.HandlerFunc(s.admit))
	adminAt := group.HTTP("admin", s.Admin, s.admin())
	if s.Ready != nil && group.Err() == nil {
		s.Ready(at, adminAt)
	}
	running, ctx := errgroup.WithContext(ctx)
	running.Go(func() error { s.Certificate.Run(ctx); return nil })
	running.Go(func() error { return group.Run(ctx, grace, s.Log) })
	return running.Wait()
}

// nativeSince is the first minor version of Kubernetes 1 with native sidecars.
const nativeSince = 29

// readVersion asks the API server for its version and sets s.native. It repeats a failed
// request until ctx ends, and then returns the error of ctx.
func (s *Server) readVersion(ctx context.Context) error {
	for {
		info, err := s.Client.Discovery().ServerVersion()
		if err == nil {
			minor, _ := strconv.Atoi(strings.TrimRight(info.Minor, "+"))
			s.native = info.Major == "1" && minor >= nativeSince
			s.Log.InfoContext(ctx, "the API server answers", "version", info.GitVersion, "native_sidecars", s.native)
			return nil
		}
		s.Log.WarnContext(ctx, "the version of the API server is unknown", "error", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(s.Certificate.Interval):
		}
	}
}

// admin returns the handler of /healthz, /readyz and /metrics.
func (s *Server) admin() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !s.Certificate.Ready() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.metrics, promhttp.HandlerOpts{}))
	return mux
}

// maxReview is the maximum size of an AdmissionReview. A review can contain the old and the new
// version of an object, and the API server accepts objects of at most 3 MiB.
const maxReview = 8 << 20

// admit answers an AdmissionReview. After a failure it responds with an HTTP error, so that
// the API server applies the failurePolicy of the webhook.
func (s *Server) admit(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	var review admissionv1.AdmissionReview
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxReview)).Decode(&review)
	if err != nil || review.Request == nil {
		s.responses.WithLabelValues("error").Inc()
		http.Error(w, "the body must be an AdmissionReview with a request", http.StatusBadRequest)
		return
	}
	result, err := s.review(r.Context(), &review)
	s.responses.WithLabelValues(result).Inc()
	s.durations.Observe(time.Since(began).Seconds())
	if err != nil {
		s.Log.WarnContext(r.Context(), "admission failed", "namespace", review.Request.Namespace, "error", err)
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	review.Request = nil
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review) //nolint:errchkjson // the connection of the API server may be gone
}

// review sets the response in an AdmissionReview. It returns the value of the metric label
// result: "injected", "skipped", "denied" or "error".
func (s *Server) review(ctx context.Context, review *admissionv1.AdmissionReview) (string, error) {
	request := review.Request
	response := &admissionv1.AdmissionResponse{UID: request.UID, Allowed: true}
	review.Response = response
	if request.Kind.Kind != "Pod" || request.Kind.Group != "" || request.SubResource != "" {
		return "skipped", nil
	}
	namespace, err := s.Client.CoreV1().Namespaces().Get(ctx, request.Namespace, metav1.GetOptions{})
	if err != nil {
		return "error", fmt.Errorf("namespace %s: %w", request.Namespace, err)
	}
	raw := request.Object.Raw
	if !injector.Enabled(raw, namespace.Annotations) {
		return "skipped", nil
	}
	config, err := s.Config()
	if err != nil {
		return "error", err
	}
	config.Native = config.Native && s.native
	log := s.Log.With("namespace", request.Namespace, "pod", podName(request))
	patch, result, err := config.Patch(raw, namespace.Annotations)
	switch {
	case err != nil:
		log.WarnContext(ctx, "pod denied", "error", err)
		response.Allowed = false
		response.Result = &metav1.Status{
			Message: "the proxy could not be injected: " + err.Error(), Reason: metav1.StatusReasonInvalid,
			Code: http.StatusUnprocessableEntity,
		}
		return "denied", nil
	case patch == nil:
		log.InfoContext(ctx, "pod skipped", "reason", result.Skipped)
		response.Warnings = []string{"the proxy was not injected: " + result.Skipped}
		return "skipped", nil
	}
	log.InfoContext(ctx, "pod injected")
	patchType := admissionv1.PatchTypeJSONPatch
	response.Patch, response.PatchType = patch, &patchType
	response.Warnings = result.Warnings
	return "injected", nil
}

// podName returns the name of the pod in request. If the API server has not yet generated
// the name, podName returns its prefix.
func podName(request *admissionv1.AdmissionRequest) string {
	var pod metav1.PartialObjectMetadata
	_ = json.Unmarshal(request.Object.Raw, &pod) // the API server has validated it
	if pod.Name == "" {
		return pod.GenerateName
	}
	return pod.Name
}
