package repository

import (
	"errors"
	"go/build"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const module = "github.com/gotower/gotower"

// TestLayering checks which packages may import which, and which folders may import certain
// packages, for each operating system with files of its own. Test files may import anything.
func TestLayering(t *testing.T) {
	for _, system := range []string{"linux", "darwin", "windows"} {
		for _, packages := range imports(t, system) {
			for _, imported := range packages[1:] {
				if rule := breach(packages[0], imported); rule != "" {
					assert.Failf(t, "wrong import", "on %s, %s imports %s: %s", system, packages[0], imported, rule)
				}
			}
		}
	}
}

// imports lists each package in this module with its imports on an operating system.
func imports(t *testing.T, system string) (list [][]string) {
	t.Helper()
	buildContext := build.Default
	buildContext.GOOS, buildContext.CgoEnabled = system, false
	err := filepath.WalkDir(".", func(dir string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		name := entry.Name()
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); dir != "." && (err == nil || name == "testdata" || strings.ContainsAny(name[:1], "._")) {
			return fs.SkipDir // another module's package
		}
		pkg, err := buildContext.ImportDir(dir, 0)
		if _, none := errors.AsType[*build.NoGoError](err); none {
			return nil
		}
		list = append(list, append([]string{path.Join(module, filepath.ToSlash(dir))}, pkg.Imports...))
		return err
	})
	require.NoError(t, err)
	require.Greater(t, len(list), 50)
	return list
}

// The check reads files of other operating systems.
func TestLayeringSeesOtherSystems(t *testing.T) {
	seen := make(map[string]string)
	for _, system := range []string{"linux", "windows"} {
		for _, packages := range imports(t, system) {
			seen[system] += strings.Join(packages, " ") + "\n"
		}
	}
	assert.NotEqual(t, seen["linux"], seen["windows"])
}

// breach returns the rule that pkg breaks by importing imported, or "".
func breach(pkg, imported string) string {
	allowedImports := map[string][]string{ // a folder, and the folders that it may import
		"layer":    {"layer", "internal"},
		"resolve":  {"resolve", "internal"},
		"discover": {"discover", "layer", "resolve", "internal"},
		"balance":  {"balance", "layer", "resolve", "discover", "internal"},
		"profiles": {"profiles", "layer", "resolve", "internal"},
		"tap":      {"tap", "layer", "internal"},
		"internal": {"internal"},

		"httpclient": {"layer", "resolve", "discover", "balance", "profiles", "internal"},
		"instrument": {"instrument", "layer", "balance"},

		"internal/policyroute": {"profiles", "layer", "internal"},
		"internal/wire":        {"resolve", "internal"},

		// grpclayer connects discovery and balancing, which are above layer, to gRPC. Only programs
		// import it, because an import from layer would be a cycle.
		"layer/grpclayer": {"layer", "resolve", "discover", "balance", "internal"},
	}
	confined := map[string][]string{ // an import, and the folders that may use it; the longest matching import applies
		"net/http":                                 {"layer/httplayer", "internal/exchangetest", "internal/grpcunary", "internal/restarttest", "httpclient", "tap/view", "examples"},
		module + "/layer/httplayer":                {"layer", "httpclient", "tap/view", "examples"}, // imports net/http
		module + "/layer/grpclayer":                {"examples"},                                    // see allowedImports
		"github.com/stretchr/testify":              {"*test"},
		"github.com/go-kit/kit/metrics/prometheus": {"examples"},
		"github.com/prometheus/client_golang":      {"instrument/promtower", "examples"},
		"k8s.io":                                   kubernetesClients,
		"k8s.io/client-go/util/jsonpath":           {"examples/tapctl/template"},
	}
	folder := strings.TrimPrefix(strings.TrimPrefix(pkg, module), "/")
	src, _, _ := strings.Cut(folder, "/")
	if rest, ours := strings.CutPrefix(imported, module+"/"); ours && src != "examples" {
		dst, _, _ := strings.Cut(rest, "/")
		if allowedImports[folder] != nil {
			src = folder
		}
		if allowedImports[src] == nil {
			return "a folder without an entry must not import packages of this module"
		}
		if !slices.Contains(allowedImports[src], dst) {
			return src + " may import only " + strings.Join(allowedImports[src], ", ")
		}
	}
	what := ""
	for prefix := range confined {
		if within(imported, prefix) && len(prefix) > len(what) {
			what = prefix
		}
	}
	allowed := func(place string) bool {
		kit, _ := path.Match(place, path.Base(folder))
		return kit || within(folder, place)
	}
	if where := confined[what]; what != "" && !slices.ContainsFunc(where, allowed) {
		return what + " may be imported only in " + strings.Join(where, ", ")
	}
	return ""
}

// kubernetesClients are the folders that create Kubernetes clients.
var kubernetesClients = []string{
	"resolve/k8s", "internal/kubetest",
	"examples/check", "examples/destination", "examples/gateway", "examples/identity", "examples/inject",
	"examples/install", "examples/internal/kubeobject", "examples/pods", "examples/tapctl",
}

func within(name, folder string) bool {
	return name == folder || strings.HasPrefix(name, folder+"/")
}

func TestLayeringRejects(t *testing.T) {
	for _, tt := range []struct{ pkg, imported, rule string }{
		{"layer", "layer/layertest", ""},
		{"layer/httplayer", "internal/notify", ""},
		{"layer/httplayer", "net/http/httptrace", ""},
		{"layer/layertest", "github.com/stretchr/testify/require", ""},
		{"tap/view", "net/http", ""},
		{"httpclient", "net/http", ""},
		{"httpclient", "balance", ""},
		{"examples/proxy", "balance", ""},
		{"examples/proxy", "github.com/prometheus/client_golang/prometheus/promhttp", ""},
		{"balance", "github.com/go-kit/kit/metrics", ""},
		{"balance", "google.golang.org/grpc", ""},
		{"resolve/k8s", "k8s.io/client-go/kubernetes", ""},
		{"examples/proxy", "k8s.io/api/core/v1", "k8s.io may be imported only in " + strings.Join(kubernetesClients, ", ")},
		{"examples/tapctl/template", "k8s.io/client-go/util/jsonpath", ""},
		{"resolve/k8s", "k8s.io/client-go/util/jsonpath", "k8s.io/client-go/util/jsonpath may be imported only in examples/tapctl/template"},
		{"layer/grpclayer", "balance", ""},
		{"examples/proxy", "layer/grpclayer", ""},

		{"layer", "resolve", "layer may import only layer, internal"},
		{"layer/layertest", "tap", "layer may import only layer, internal"},
		{"resolve/linkerd", "layer", "resolve may import only resolve, internal"},
		{"discover", "balance", "discover may import only discover, layer, resolve, internal"},
		{"tap", "resolve", "tap may import only tap, layer, internal"},
		{"profiles", "balance", "profiles may import only profiles, layer, resolve, internal"},
		{"internal/notify", "layer", "internal may import only internal"},
		{"balance", "examples/demo", "balance may import only balance, layer, resolve, discover, internal"},
		{"", "layer", "a folder without an entry must not import packages of this module"},
		{"newcomer", "layer", "a folder without an entry must not import packages of this module"},
		{"layer", "net/http", "net/http may be imported only in layer/httplayer, internal/exchangetest, internal/grpcunary, internal/restarttest, httpclient, tap/view, examples"},
		{"layer/httplayerx", "net/http", "net/http may be imported only in layer/httplayer, internal/exchangetest, internal/grpcunary, internal/restarttest, httpclient, tap/view, examples"},
		{"tap", "net/http/httptest", "net/http may be imported only in layer/httplayer, internal/exchangetest, internal/grpcunary, internal/restarttest, httpclient, tap/view, examples"},
		{"balance", "layer/httplayer", module + "/layer/httplayer may be imported only in layer, httpclient, tap/view, examples"},
		{"layer", "github.com/stretchr/testify/assert", "github.com/stretchr/testify may be imported only in *test"},
		{"balance", "layer/grpclayer", module + "/layer/grpclayer may be imported only in examples"},
		{"layer/httplayer", "layer/grpclayer", module + "/layer/grpclayer may be imported only in examples"},
		{"layer/httplayer", "balance", "layer may import only layer, internal"},
		{
			"layer/grpclayer", "profiles",
			"layer/grpclayer may import only layer, resolve, discover, balance, internal",
		},
		{
			"layer/kitlayer", "github.com/go-kit/kit/metrics/prometheus",
			"github.com/go-kit/kit/metrics/prometheus may be imported only in examples",
		},
		{
			"tap", "github.com/prometheus/client_golang/prometheus",
			"github.com/prometheus/client_golang may be imported only in instrument/promtower, examples",
		},
	} {
		imported := tt.imported
		if !strings.Contains(imported, ".") && !within(imported, "net") {
			imported = module + "/" + imported
		}
		assert.Equal(t, tt.rule, breach(strings.TrimSuffix(module+"/"+tt.pkg, "/"), imported), "%s imports %s", tt.pkg, tt.imported)
	}
}
