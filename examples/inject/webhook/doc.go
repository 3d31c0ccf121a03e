// Package webhook injects the proxy into pods as a mutating admission webhook, see
// [Server]. The webhook keeps its certificate in a Secret, renews it, and publishes it in
// the caBundle of a MutatingWebhookConfiguration, see [Certificate].
package webhook
