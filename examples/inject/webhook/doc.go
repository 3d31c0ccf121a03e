// Package webhook serves the injection of pods as a mutating admission webhook, see
// [Server]. It keeps its own certificate in a Secret, renews it, and writes the caBundle of
// its MutatingWebhookConfiguration, see [Certificate].
package webhook
