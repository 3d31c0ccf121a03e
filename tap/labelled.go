package tap

import "maps"

// SourceLabeler is what an [layer.Accessor] may have besides, to say what is known of
// the client of a request beyond its address: httplayer.Accessor has it. It is
// asked for inbound requests that somebody watches.
type SourceLabeler[Req any] interface {
	// WithSourceLabels returns labels such as tls and client_id, or nil. The
	// result is not kept by it.
	SourceLabels(req Req) map[string]string
}

// sourceLabels are what is known of the client of this request. What all
// clients of the layer have in common was said by who built it, and holds.
func (v *view[Req, Rsp]) sourceLabels() map[string]string {
	of, ok := v.access.(SourceLabeler[Req])
	if !ok || v.place.direction != Inbound {
		return v.place.sourceLabels
	}
	labels := of.SourceLabels(v.req)
	if len(labels) == 0 {
		return v.place.sourceLabels
	}
	maps.Copy(labels, v.place.sourceLabels)
	return labels
}
