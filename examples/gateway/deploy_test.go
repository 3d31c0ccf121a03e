package main

import (
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/gotower/gotower/examples/gateway/config"
)

// The pods of kubernetes.yaml run the gateway, with a valid file and the time to drain.
func TestKubernetesManifest(t *testing.T) {
	text, err := os.ReadFile("kubernetes.yaml")
	require.NoError(t, err)
	var files corev1.ConfigMap
	var pods appsv1.Deployment
	for part := range strings.SplitSeq(string(text), "\n---\n") {
		var kind struct{ Kind string }
		require.NoError(t, yaml.Unmarshal([]byte(part), &kind))
		switch kind.Kind {
		case "ConfigMap":
			require.NoError(t, yaml.UnmarshalStrict([]byte(part), &files))
		case "Deployment":
			require.NoError(t, yaml.UnmarshalStrict([]byte(part), &pods))
		}
	}
	spec := pods.Spec.Template.Spec
	c := spec.Containers[0]
	assert.Equal(t, []string{"/gateway", "run", "/etc/gateway/gateway.yaml"}, append(c.Command, c.Args...))
	assert.Equal(t, "/etc/gateway", c.VolumeMounts[0].MountPath)
	cfg, err := config.Parse("gateway.yaml", []byte(files.Data["gateway.yaml"]))
	require.NoError(t, err)
	drain := (cfg.DrainDelay.D() + cfg.DrainTimeout.D()).Seconds()
	assert.Greater(t, float64(*spec.TerminationGracePeriodSeconds), drain+time.Second.Seconds())
	assert.Equal(t, config.Address(":9901"), cfg.Admin.Address)
	for _, p := range c.Ports {
		if p.Name == "admin" {
			assert.EqualValues(t, 9901, p.ContainerPort)
		}
	}
}

// The image and the compose file run the gateway with the same file.
func TestImageAndCompose(t *testing.T) {
	text, err := os.ReadFile("../../Dockerfile")
	require.NoError(t, err)
	_, image, ok := strings.Cut(string(text), "\nFROM ${BASE} AS gateway\n")
	require.True(t, ok)
	image, _, _ = strings.Cut(image, "\n\n")
	const file = "/etc/gateway/gateway.yaml"
	assert.Contains(t, image, `ENTRYPOINT ["/gateway"]`+"\n"+`CMD ["run", "`+file+`"]`)
	assert.Contains(t, image, `HEALTHCHECK CMD ["/gateway", "health", "`+file+`"]`)

	text, err = os.ReadFile("compose.yaml")
	require.NoError(t, err)
	var compose struct {
		Services map[string]struct {
			Build   struct{ Target string }
			Configs []struct{ Source, Target string }
		}
		Configs map[string]struct{ Content string }
	}
	require.NoError(t, yaml.Unmarshal(text, &compose))
	gateway := compose.Services["gateway"]
	assert.Equal(t, "gateway", gateway.Build.Target)
	assert.Equal(t, file, gateway.Configs[0].Target)
	require.NoError(t, run(t.Context(), []string{"check", writeIn(t, t.TempDir(), compose.Configs[gateway.Configs[0].Source].Content)}, io.Discard, io.Discard))
}
