package webhook

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/gotower/gotower/examples/destination/kube"
	"github.com/gotower/gotower/examples/inject/injector"
	"github.com/gotower/gotower/examples/internal/serve"
)

// Server is the admission webhook: it injects the proxy into pods, and validates ServiceProfiles. It
// answers the API server over TLS. A second listener serves probes and metrics in cleartext.
type Server struct {
	Client       kubernetes.Interface
	Certificates []*Certificate                  // one for each webhook configuration; the first also for unknown names
	Config       func() (injector.Config, error) // called for each request, because trust anchors can change
	Listen       string                          // address for the API server
	Admin        string                          // address for /healthz, /readyz and /metrics
	Ready        func(listen, admin string)      // if not nil, called when both listeners are open
	Log          *slog.Logger

	native    bool // whether the cluster supports native sidecars
	responses *prometheus.CounterVec
	durations prometheus.Histogram
	metrics   *prometheus.Registry
}

// grace is how long open requests may take once Run's context has ended.
const grace = 10 * time.Second

// Run serves until ctx ends. Before it listens, it asks the API server for its version, which
// decides whether the webhook may use native sidecars.
func (s *Server) Run(ctx context.Context) error {
	// Native sidecars are only used if the cluster supports them.
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
		Name: "proxy_inject_cert_expiration_timestamp_seconds", Help: "When the first certificate of the webhook expires.",
	}, s.expiry)
	s.metrics.MustRegister(s.responses, s.durations, expiry)

	// group serves both listeners, and ends them together.
	var group serve.Group
	// The certificate is chosen at each handshake, because it may be renewed.
	secure := func(l net.Listener) net.Listener {
		return tls.NewListener(l, &tls.Config{GetCertificate: s.certificate, MinVersion: tls.VersionTLS12})
	}
	// An error is kept in group, and returned by Run.
	webhookAddr := group.HTTPBehind(secure, "webhook", s.Listen, http.HandlerFunc(s.admit))
	adminAddr := group.HTTP("admin", s.Admin, s.admin())
	if s.Ready != nil && group.Err() == nil {
		s.Ready(webhookAddr, adminAddr)
	}
	running, ctx := errgroup.WithContext(ctx)
	for _, c := range s.Certificates {
		running.Go(func() error { c.Run(ctx); return nil })
	}
	running.Go(func() error { return group.Run(ctx, grace, s.Log) })
	return running.Wait()
}

// certificate returns the certificate for the name that a client connects to.
func (s *Server) certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	// A client without a name, or with another one, gets the first certificate.
	for _, c := range s.Certificates {
		if slices.Contains(c.Names, hello.ServerName) {
			return c.Get(hello)
		}
	}
	return s.Certificates[0].Get(hello)
}

// expiry returns when the first certificate expires, in seconds since 1970. It returns 0 while one
// is missing.
func (s *Server) expiry() float64 {
	// The first one that expires is what operators need to know.
	first := math.Inf(1)
	for _, c := range s.Certificates {
		cert, err := c.Get(nil)
		if err != nil {
			return 0
		}
		first = min(first, float64(cert.Leaf.NotAfter.Unix()))
	}
	return first
}

// nativeSince is the first minor version of Kubernetes 1 that supports native sidecars.
const nativeSince = 29

// readVersion asks the API server for its version. It sets s.native to true if that version supports
// native sidecars. It retries until the API server answers or ctx ends.
func (s *Server) readVersion(ctx context.Context) error {
	for {
		info, err := s.Client.Discovery().ServerVersion()
		if err == nil {
			minor, _ := strconv.Atoi(strings.TrimRight(info.Minor, "+")) // some providers append a +
			s.native = info.Major == "1" && minor >= nativeSince
			s.Log.InfoContext(ctx, "the API server answers", "version", info.GitVersion, "native_sidecars", s.native)
			return nil
		}
		s.Log.WarnContext(ctx, "the version of the API server is unknown", "error", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(s.Certificates[0].Interval):
		}
	}
}

// admin returns the handler for /healthz, /readyz and /metrics.
func (s *Server) admin() http.Handler {
	mux := http.NewServeMux()
	// An empty response has the status 200.
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if slices.ContainsFunc(s.Certificates, func(c *Certificate) bool { return !c.Ready() }) {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.metrics, promhttp.HandlerOpts{}))
	return mux
}

// maxReview is how large an AdmissionReview may be. It can contain an object's old and new
// version, of at most 3 MiB each.
const maxReview = 8 << 20

// admit answers an AdmissionReview. If it cannot, it responds with an HTTP error, so that the API
// server applies the webhook's failurePolicy.
func (s *Server) admit(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	var review admissionv1.AdmissionReview
	// A body that is too large is an error of the decoder.
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
	// The response must not repeat the request.
	review.Request = nil
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review) //nolint:errchkjson // the connection of the API server may be gone
}

// review sets the response in an AdmissionReview, and returns a value for the metric label
// result: "injected", "annotated", "validated", "skipped", "denied" or "error".
func (s *Server) review(ctx context.Context, review *admissionv1.AdmissionReview) (string, error) {
	request := review.Request
	response := &admissionv1.AdmissionResponse{UID: request.UID, Allowed: true}
	review.Response = response
	// ServiceProfiles are validated, and everything else is changed.
	if request.Kind.Group == "linkerd.io" && request.Kind.Kind == "ServiceProfile" {
		return s.validate(ctx, request, response)
	}
	isPod := request.Kind.Kind == "Pod"
	// Other kinds reach the webhook only by a wrong configuration, and are admitted unchanged.
	if !isPod && request.Kind.Kind != "Service" || request.Kind.Group != "" || request.SubResource != "" {
		return "skipped", nil
	}
	// Annotations on the namespace are the defaults for those of its pods.
	namespace, err := s.Client.CoreV1().Namespaces().Get(ctx, request.Namespace, metav1.GetOptions{})
	if err != nil {
		return "error", fmt.Errorf("namespace %s: %w", request.Namespace, err)
	}
	config, err := s.Config()
	if err != nil {
		return "error", err
	}
	raw := request.Object.Raw
	// Services, and pods without a proxy, only get the annotation for opaque ports.
	if !isPod || !injector.Enabled(raw, namespace.Annotations) {
		return s.annotate(config, request, response, namespace.Annotations)
	}
	// Only now is it known what the cluster supports.
	config.Native = config.Native && s.native
	log := s.Log.With("namespace", request.Namespace, "pod", podName(request))
	patch, result, err := config.Patch(raw, request.Namespace, namespace.Annotations)
	// A denied pod is better than one without the proxy that it asks for.
	switch {
	case err != nil:
		log.WarnContext(ctx, "pod denied", "error", err)
		return deny(response, "the proxy could not be injected: "+err.Error()), nil
	// A nil patch means that the pod cannot have a proxy.
	case patch == nil:
		log.InfoContext(ctx, "pod skipped", "reason", result.Skipped)
		response.Warnings = []string{"the proxy was not injected: " + result.Skipped}
		return s.annotate(config, request, response, namespace.Annotations)
	}
	log.InfoContext(ctx, "pod injected")
	setPatch(response, patch)
	response.Warnings = result.Warnings
	return "injected", nil
}

// validate denies a ServiceProfile that the controller could not serve.
func (s *Server) validate(
	ctx context.Context, request *admissionv1.AdmissionRequest, response *admissionv1.AdmissionResponse,
) (string, error) {
	config, err := s.Config()
	if err != nil {
		return "error", err
	}
	// The webhook accepts exactly what the controller can serve.
	if err := kube.ValidateServiceProfile(request.Object.Raw, config.ClusterDomain); err != nil {
		s.Log.WarnContext(ctx, "a ServiceProfile was denied", "namespace", request.Namespace, "name", request.Name, "error", err)
		return deny(response, err.Error()), nil
	}
	return "validated", nil
}

// deny sets a response that rejects the object, and returns the value for the metric label result.
func deny(response *admissionv1.AdmissionResponse, message string) string {
	response.Allowed = false
	response.Result = &metav1.Status{Message: message, Reason: metav1.StatusReasonInvalid, Code: http.StatusUnprocessableEntity}
	return "denied"
}

// annotate sets the opaque ports on a Service or a pod without a proxy, unless they are set
// already.
func (*Server) annotate(
	config injector.Config, request *admissionv1.AdmissionRequest, response *admissionv1.AdmissionResponse, namespace map[string]string,
) (string, error) {
	patch, err := config.OpaquePortsPatch(request.Object.Raw, namespace)
	if err != nil {
		return "error", err
	}
	if patch == nil {
		return "skipped", nil
	}
	setPatch(response, patch)
	return "annotated", nil
}

func setPatch(response *admissionv1.AdmissionResponse, patch []byte) {
	response.Patch = patch
	response.PatchType = new(admissionv1.PatchTypeJSONPatch)
}

// podName returns the pod's name, or its prefix if the API server has not generated the name yet.
func podName(request *admissionv1.AdmissionRequest) string {
	var pod metav1.PartialObjectMetadata
	_ = json.Unmarshal(request.Object.Raw, &pod) // the API server has validated it
	if pod.Name == "" {
		return pod.GenerateName
	}
	return pod.Name
}
