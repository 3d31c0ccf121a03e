package file

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/resolve"
)

// render writes targets as a file of them: JSON, which is read as YAML is.
func render(t testing.TB, targets map[string][]resolve.Endpoint) []byte {
	t.Helper()
	type object map[string]any
	destinations := object{}
	for name, endpoints := range targets {
		list := []object{}
		for _, e := range endpoints {
			o := object{
				"addr": e.Addr, "protocol": e.Protocol, "labels": e.Labels,
				"identity": e.Identity, "server_name": e.ServerName, "authority": e.Authority,
			}
			if e.Weight > 0 {
				o["weight"] = e.Weight
			}
			if e.OpaquePort > 0 {
				o["opaque_port"] = e.OpaquePort
			}
			list = append(list, o)
		}
		destinations[name] = object{"endpoints": list}
	}
	data, err := json.MarshalIndent(object{"destinations": destinations}, "", "\t")
	require.NoError(t, err)
	return data
}

// replace writes content to path as one should: beside it, and then by a rename.
func replace(t testing.TB, path string, content string) {
	t.Helper()
	beside := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
	require.NoError(t, os.WriteFile(beside, []byte(content), 0o600))
	require.NoError(t, os.Rename(beside, path))
}
