package main

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gotower/gotower/examples/destination/controller"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == inside { // the test of the pods runs this program in a sandbox
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

func TestPods(t *testing.T) { runPods(t) }

// The controller and the CA know only the objects of a kube-apiserver.
func TestPodsKubernetes(t *testing.T) { runPods(t, "-kubernetes") }

func runPods(t *testing.T, args ...string) {
	t.Helper()
	if os.Getenv("GOTOWER_TESTS") != "full" {
		t.Skip("it takes half a minute and both processors: set GOTOWER_TESTS=full, or go run ./examples/pods")
	}
	err := outside(t.Context(), args)
	if errors.Is(err, errSkip) {
		t.Skip(err)
	}
	require.NoError(t, err)
}

func TestClusterDestinationsValid(t *testing.T) {
	data, err := newCluster().destinations(newCluster().shopSplit(90, 10))
	require.NoError(t, err)
	cfg, err := controller.Parse("f", data)
	require.NoError(t, err, "%s", data)
	require.NoError(t, controller.New(nil).Set(cfg))

	web := cfg.Destinations["web.default.svc.cluster.local:80"]
	require.Len(t, web.Endpoints, 2)
	require.Equal(t, "web.default.serviceaccount.identity.linkerd.cluster.local", web.Endpoints[1].Identity)
	require.Equal(t, web.Profile, cfg.Destinations["10.78.0.1:80"].Profile, "the profile of the address has the name")
	require.Len(t, cfg.Servers, 3)
	require.EqualValues(t, 8080, cfg.Servers[0].Port)
	mail := cfg.Destinations["10.77.0.13:2525"].Profile
	require.True(t, mail.Opaque)
	require.EqualValues(t, inboundPort, mail.Endpoint.InboundPort)
}

// The applications would work without proxies: they do not know of gotower.
func TestAppImports(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "./app").Output()
	require.NoError(t, err)
	var ours []string
	for line := range strings.Lines(string(out)) {
		if strings.HasPrefix(line, "github.com/gotower/") {
			ours = append(ours, strings.TrimSpace(line))
		}
	}
	require.Equal(t, []string{"github.com/gotower/gotower/examples/pods/app"}, ours)
}

func TestFlags(t *testing.T) {
	var o options
	require.NoError(t, o.parse([]string{"-iptables-mode", "legacy", "-wire"}))
	require.Equal(t, options{mode: "legacy", wire: true}, o)
	require.ErrorContains(t, o.parse([]string{"-proxy-pods", "web-1"}), "-proxy-pods web-1: requires -proxy")
	require.ErrorContains(t, o.parse([]string{"-proxy", "x", "-proxy-pods", "web-1,web-3"}),
		`-proxy-pods: "web-3" must be one of control, client, web-1, web-2, data`)
	require.ErrorContains(t, o.parse([]string{"x"}), `"x": arguments must be flags; see -help`)
	require.ErrorContains(t, o.parse([]string{"-iptables-mode", "x"}), `"x" must be nft or legacy; see -help`)
	require.ErrorIs(t, checkRequirements("no-such-mode"), errSkip)
	_, err := makeWorkDir(t.TempDir())
	require.ErrorContains(t, err, "--keep: mkdir", "nothing of others is written over")
}
