package file

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/follow"
	"github.com/gotower/gotower/resolve"
)

func thousand() map[string][]resolve.Endpoint {
	targets := map[string][]resolve.Endpoint{}
	for i := range 100 {
		var list []resolve.Endpoint
		for n := range 10 {
			ip := netip.AddrFrom4([4]byte{10, 0, byte(i), byte(n)})
			list = append(list, resolve.Endpoint{
				ID:     resolve.ID{Addr: netip.AddrPortFrom(ip, 80)},
				Labels: map[string]string{"zone": "a", "pod": fmt.Sprint(n)},
			})
		}
		targets[fmt.Sprintf("web-%d:80", i)] = list
	}
	return targets
}

// The poll of an unchanged file.
func BenchmarkLookUnchanged(b *testing.B) {
	path := temp(b, string(render(b, thousand())))
	age(b, path, time.Hour)
	f := follow.File[targets]{Path: path, Max: 1 << 20, Parse: Parse}
	first := f.Look()
	require.NoError(b, first.Latest.Err)
	b.ReportAllocs()
	for b.Loop() {
		if f.Look() != first {
			b.Fatal("the file was read again")
		}
	}
}

// A thousand endpoints in a hundred targets.
func BenchmarkParse(b *testing.B) {
	data := render(b, thousand())
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Parse("f", data); err != nil {
			b.Fatal(err)
		}
	}
}
