// Preloaded into a server that would listen on all interfaces: makes it listen on 127.0.0.1 alone.
const net = require("net");
const listen = net.Server.prototype.listen;
net.Server.prototype.listen = function (...args) {
  const given = args[0];
  if (typeof given === "object" && given !== null && "port" in given) {
    args[0] = { ...given, host: "127.0.0.1" };
  } else if (typeof given === "number" || (typeof given === "string" && /^\d+$/.test(given))) {
    const rest = args.slice(1).filter((argument) => typeof argument === "function");
    args = [{ port: Number(given), host: "127.0.0.1" }, ...rest];
  }
  return listen.apply(this, args);
};
