package tap

import (
	"context"
	"testing"

	"google.golang.org/protobuf/proto"
)

// shownOf are the events of one request, as a watcher gets them.
func shownOf(t testing.TB, fields bool) []Event {
	t.Helper()
	reg := new(Registry)
	w := watchOn(t, reg, nil)
	w.fields = fields
	svc := stand(reg, endpoint{&reply{status: 200}})
	_, _ = svc.Call(context.Background(), get("/api/vote"))
	return events(w)
}

// BenchmarkEncode encodes the three events of a request.
func BenchmarkEncode(b *testing.B) {
	all := shownOf(b, false)
	b.Run("observe", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			for i := range all {
				_, _ = proto.Marshal(all[i].proto())
			}
		}
	})
	b.Run("watch", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			for i := range all {
				m := all[i].watchProto()
				_, _ = proto.Marshal(m)
			}
		}
	})
}
