// Package webhook injects the proxy into pods, and validates ServiceProfiles, as an admission
// webhook, see [Server]. For each webhook configuration, it keeps a certificate in a Secret, renews
// it, and publishes it in the caBundle, see [Certificate].
package webhook
