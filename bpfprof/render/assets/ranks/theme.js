const isDark = matchMedia("(prefers-color-scheme: dark)");
const choose = () => { document.documentElement.dataset.theme = isDark.matches ? "dark" : "light"; };
isDark.addEventListener("change", choose);
choose();
document.documentElement.dataset.ready = "true";
