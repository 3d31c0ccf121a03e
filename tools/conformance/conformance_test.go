package conformance

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/gateway-api/apis/v1alpha2"
	"sigs.k8s.io/gateway-api/apis/v1alpha3"
	xv1alpha1 "sigs.k8s.io/gateway-api/apisx/v1alpha1"
	conformance "sigs.k8s.io/gateway-api/conformance"
	"sigs.k8s.io/gateway-api/conformance/tests"
	"sigs.k8s.io/gateway-api/conformance/utils/config"
	"sigs.k8s.io/gateway-api/conformance/utils/suite"
	"sigs.k8s.io/gateway-api/pkg/features"
	"sigs.k8s.io/yaml"

	"github.com/gotower/gotower/internal/kubetest"
)

var (
	only   = flag.String("only", "", "the name of the only test that runs")
	report = flag.String("report", "", "the file to which the report is written")
)

// supported are the features of README.md.
var supported = []features.FeatureName{
	features.SupportGateway, features.SupportReferenceGrant, features.SupportHTTPRoute, features.SupportGRPCRoute,
	features.SupportTLSRoute,
	features.SupportGatewayPort8080, features.SupportGatewayHTTPListenerIsolation,
	features.SupportGRPCRouteNamedRouteRule, features.SupportHTTPRouteNamedRouteRule, features.SupportHTTPRouteParentRefPort,
	features.SupportHTTPRouteQueryParamMatching, features.SupportHTTPRouteMethodMatching,
	features.SupportHTTPRouteResponseHeaderModification, features.SupportHTTPRoutePortRedirect, features.SupportHTTPRouteSchemeRedirect,
	features.SupportHTTPRoutePathRedirect, features.SupportHTTPRouteHostRewrite, features.SupportHTTPRoutePathRewrite,
	features.SupportHTTPRouteRequestTimeout, features.SupportHTTPRouteBackendTimeout,
	features.SupportHTTPRouteBackendProtocolH2C, features.SupportHTTPRouteBackendProtocolWebSocket, features.SupportHTTPRouteCORS,
	features.SupportHTTPRoute303RedirectStatusCode, features.SupportHTTPRoute307RedirectStatusCode, features.SupportHTTPRoute308RedirectStatusCode,
	features.SupportHTTPRouteRetry,
}

// notHere has the features of the gateway that cannot be tested here, with the reason.
var notHere = map[features.FeatureName]string{
	features.SupportHTTPRouteRequestMirror:           "the tests read the logs of pods from a kubelet",
	features.SupportHTTPRouteRequestMultipleMirrors:  "the tests read the logs of pods from a kubelet",
	features.SupportHTTPRouteRequestPercentageMirror: "the tests read the logs of pods from a kubelet",
}

// result is the outcome of one test of the suite.
type result struct{ name, outcome, reason string }

func TestConformance(t *testing.T) {
	server := kubetest.New(t)
	log.SetLogger(logr.Discard())
	cfg := server.Config(kubetest.Admin)
	gateways := new(atomic.Int64)
	cfg.Wrap(func(to http.RoundTripper) http.RoundTripper { return &addressing{to, gateways} })
	c, err := client.New(cfg, client.Options{})
	require.NoError(t, err)
	for _, add := range []func() error{
		func() error { return v1alpha3.Install(c.Scheme()) }, func() error { return v1alpha2.Install(c.Scheme()) },
		func() error { return xv1alpha1.Install(c.Scheme()) }, func() error { return gatewayv1.Install(c.Scheme()) },
		func() error { return apiextensionsv1.AddToScheme(c.Scheme()) },
	} {
		require.NoError(t, add())
	}
	clients, err := kubernetes.NewForConfig(cfg)
	require.NoError(t, err)
	version := createDefinitions(t, c)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()

	gateway := build(t, "../..", "gateway", "./examples/gateway")
	n := &node{Client: c, program: build(t, ".", "echo", "sigs.k8s.io/gateway-api/conformance/echo-basic"), pods: map[client.ObjectKey][]pod{}}
	go n.run(ctx, t)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "gateway.yaml"), fmt.Appendf(nil, `admin: {address: "127.0.0.1:0", tap: "off"}
accessLog: {format: json, path: access.log}
kubernetes: {kubeconfig: "%s", ingressHTTP: "127.0.0.1:8081", ingressHTTPS: "127.0.0.1:8444"}
`, server.Kubeconfig(t, kubetest.Admin, "")), 0o600))
	cmd := exec.CommandContext(ctx, gateway, "run", filepath.Join(dir, "gateway.yaml"))
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	require.NoError(t, cmd.Start())
	defer func() {
		stop()
		_ = cmd.Wait()
		if t.Failed() {
			lines := strings.Split(output.String(), "\n")
			t.Log(strings.Join(lines[max(0, len(lines)-40):], "\n"))
		}
	}()
	require.NoError(t, c.Create(ctx, &gatewayv1.GatewayClass{
		ObjectMeta: metav1.ObjectMeta{Name: "gotower"}, Spec: gatewayv1.GatewayClassSpec{ControllerName: "github.com/gotower/gateway"},
	}))

	timeouts := config.DefaultTimeoutConfig()
	timeouts.MaxTimeToConsistency = 10 * time.Second
	timeouts.TestIsolation = 0
	options := suite.ConformanceOptions{
		Client: c, Clientset: clients, RestConfig: cfg, ManifestFS: []fs.FS{&conformance.Manifests},
		ConfigurableOptions: suite.ConfigurableOptions{
			GatewayClassName: "gotower", RunTest: *only, TimeoutConfig: timeouts, SupportedFeatures: supported, CleanupTestResources: true,
		},
	}
	var mu sync.Mutex
	var results []result
	options.Hook = func(t *testing.T, test suite.ConformanceTest, _ *suite.ConformanceTestSuite) {
		mu.Lock()
		defer mu.Unlock()
		results = append(results, outcome(t, test))
	}
	s, err := suite.NewConformanceTestSuite(options)
	require.NoError(t, err)
	s.Setup(t, tests.ConformanceTests)
	t.Cleanup(func() {
		if *report != "" {
			writeReport(t, version, results)
		}
	})
	t.Run("suite", func(t *testing.T) { require.NoError(t, s.Run(t, tests.ConformanceTests)) })
}

// outcome returns the result of a test that has ended.
func outcome(t *testing.T, test suite.ConformanceTest) result {
	r := result{name: test.ShortName, outcome: "passed"}
	if t.Failed() {
		r.outcome, r.reason = "FAILED", "cause not known yet"
	}
	if t.Skipped() {
		r.outcome, r.reason = "skipped", "skipped by the test"
		for _, f := range test.Features {
			if !slices.Contains(supported, f) {
				r.reason = "not supported: " + string(f)
				if why := notHere[f]; why != "" {
					r.reason = why
				}
				break
			}
		}
	}
	return r
}

// createDefinitions creates the CustomResourceDefinitions of the experimental channel of the
// module in go.mod, because HTTPRoutes of the standard channel have no retries. It returns the
// version of the module.
func createDefinitions(t *testing.T, c client.Client) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Version}} {{.Dir}}", "sigs.k8s.io/gateway-api").Output()
	require.NoError(t, err)
	version, dir, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
	files, err := filepath.Glob(filepath.Join(dir, "config", "crd", "experimental", "gateway.networking.k8s.io_*s.yaml"))
	require.NoError(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		crd := new(apiextensionsv1.CustomResourceDefinition)
		require.NoError(t, yaml.Unmarshal(text, crd))
		if crd.Kind == "CustomResourceDefinition" {
			require.NoError(t, c.Create(t.Context(), crd))
		}
	}
	require.Eventually(t, func() bool {
		return c.List(t.Context(), new(gatewayv1.TLSRouteList)) == nil && c.List(t.Context(), new(gatewayv1.GRPCRouteList)) == nil &&
			c.List(t.Context(), new(gatewayv1.HTTPRouteList)) == nil &&
			c.List(t.Context(), new(gatewayv1.GatewayList)) == nil && c.List(t.Context(), new(gatewayv1.GatewayClassList)) == nil
	}, time.Minute, 100*time.Millisecond)
	return version
}

// writeReport writes the results as Markdown.
func writeReport(t *testing.T, version string, results []result) {
	count := map[string]int{}
	slices.SortFunc(results, func(a, b result) int { return strings.Compare(a.name, b.name) })
	var rows strings.Builder
	for _, r := range results {
		count[r.outcome]++
		fmt.Fprintf(&rows, "| %s | %s | %s |\n", r.name, r.outcome, r.reason)
	}
	text := fmt.Sprintf(`# Conformance tests of the Gateway API

%s, `+"`sigs.k8s.io/gateway-api/conformance`"+` %s, experimental channel, because of the retries. Written by
`+"`bash .ci/conformance.sh`"+`, which needs root on Linux.

%d passed, %d failed, %d skipped.

The tests run against the programs of .ci/kube.sh and examples/gateway. No kubelet and no controllers run. The pods of
the tests are processes of the server echo-basic of the suite, each with an address of its own. A Gateway without
spec.addresses is created with an address of its own.

| test | result | reason |
|---|---|---|
%s`, time.Now().UTC().Format(time.DateOnly), version, count["passed"], count["FAILED"], count["skipped"], &rows)
	require.NoError(t, os.WriteFile(*report, []byte(text), 0o600))
}
